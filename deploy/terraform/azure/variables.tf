# Parameters of the cluster in Azure.

variable "location" {
  description = "Region"
  type        = string
}

variable "name" {
  description = "First part of the names of all resources"
  type        = string
  default     = "skep"
}

variable "image" {
  description = "Image with cloud-init and Linux 5.19 or later"
  type        = object({ publisher = string, offer = string, sku = string, version = string })
  default = {
    publisher = "Debian"
    offer     = "debian-12"
    sku       = "12-gen2"
    version   = "latest"
  }
}

variable "admin_user" {
  description = "User for ssh"
  type        = string
  default     = "skepadmin"
}

variable "ssh_key" {
  description = "Public key of this user"
  type        = string
}

variable "server_size" {
  description = "Size of the metadata and storage servers"
  type        = string
  default     = "Standard_DS14_v2"
}

variable "client_size" {
  description = "Size of the login and compute nodes"
  type        = string
  default     = "Standard_DS14_v2"
}

variable "storage_servers" {
  description = "Number of storage servers"
  type        = number
  default     = 4
}

variable "metadata_disks" {
  description = "Number of data disks of each metadata server"
  type        = number
  default     = 1
}

variable "storage_disks" {
  description = "Number of data disks of each storage server; each is one target"
  type        = number
  default     = 10
}

variable "disk_type" {
  description = "Type of the data disks"
  type        = string
  default     = "Premium_LRS"
}

variable "disk_gib" {
  description = "Size of each data disk; 512 GiB of Premium_LRS is a P20"
  type        = number
  default     = 512
}

variable "accelerated_networking" {
  description = "Network adapters of the host for all machines (SR-IOV)"
  type        = bool
  default     = true
}

variable "metadata_servers" {
  description = "Number of metadata servers, with the host of management"
  type        = number
  default     = 1
}

variable "compute_nodes" {
  description = "Number of compute nodes"
  type        = number
  default     = 2
}

variable "mount_point" {
  description = "Mount point on the login and compute nodes"
  type        = string
  default     = "/share/scratch"
}

variable "access_network" {
  description = "Addresses that may connect by ssh to the login node, such as 192.0.2.0/24"
  type        = string
}

variable "package_url" {
  description = "Address of the package of Skep that the image needs (empty: the image contains Skep)"
  type        = string
  default     = ""
}

variable "package_sha256" {
  description = "SHA-256 of the package"
  type        = string
  default     = ""
}

variable "features" {
  description = "Additional features to enable: tune, monitor, job-accounting"
  type        = list(string)
  default     = ["tune", "monitor"]
}

variable "profiles" {
  description = "Customisation profiles, scripts that each instance runs at the end, as URL#SHA256"
  type        = list(string)
  default     = []
}
