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

variable "system" {
  description = <<-END
    Storage servers: Standard_DS14_v2 with 10 data disks each ("disks"), or L8s_v2, L32s_v2 or L80s_v2 with 1, 4 or
    10 NVMe disks of their own each. The data on the NVMe disks is lost when a machine is deallocated.
  END
  type        = string
  default     = "disks"
  validation {
    condition     = contains(["disks", "nvme-l8s", "nvme-l32s", "nvme-l80s"], var.system)
    error_message = "system must be disks, nvme-l8s, nvme-l32s or nvme-l80s."
  }
}

variable "server_size" {
  description = "Size of the host of management and metadata, and of more metadata servers"
  type        = string
  default     = "Standard_DS14_v2"
}

variable "storage_size" {
  description = "Size of the storage servers (empty: that of the system)"
  type        = string
  default     = ""
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
  description = "Number of data disks of each metadata server (0: only the disks of the machine itself)"
  type        = number
  default     = 1
}

variable "storage_disks" {
  description = "Number of data disks of each storage server (-1: that of the system; 0: only its own disks)"
  type        = number
  default     = -1
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

variable "scale_sets" {
  description = "The storage servers are a scale set, and the compute nodes are another one"
  type        = bool
  default     = false
}

variable "domain" {
  description = "Failure domain of the servers (auto: the fault domain and zone of each; empty: each by itself)"
  type        = string
  default     = "auto"
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
