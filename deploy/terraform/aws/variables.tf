# Parameters of the cluster in AWS.

variable "region" {
  description = "Region"
  type        = string
}

variable "name" {
  description = "First part of the names of all resources"
  type        = string
  default     = "skep"
}

variable "image" {
  description = "Image (AMI) with cloud-init and Linux 5.19 or later, such as Debian 12"
  type        = string
}

variable "key_name" {
  description = "Key pair for ssh to all instances"
  type        = string
}

variable "system" {
  description = "Storage servers: ssd-c3 (8 c3.8xlarge), ssd-i2 (2 i2.8xlarge) or hdd-d2 (2 d2.8xlarge)"
  type        = string
  default     = "ssd-c3"
  validation {
    condition     = contains(["ssd-c3", "ssd-i2", "hdd-d2"], var.system)
    error_message = "system must be ssd-c3, ssd-i2 or hdd-d2."
  }
}

variable "storage_type" {
  description = "Instance type of the storage servers (empty for that of the system)"
  type        = string
  default     = ""
}

variable "storage_servers" {
  description = "Number of storage servers (0 for that of the system)"
  type        = number
  default     = 0
}

variable "volume_gib" {
  description = "Size of an EBS volume for each storage server, for types without own disks (0 for none)"
  type        = number
  default     = 0
}

variable "management_type" {
  description = "Instance type of the host of management and metadata, and of more metadata servers"
  type        = string
  default     = "c3.large"
}

variable "client_type" {
  description = "Instance type of the login and compute nodes"
  type        = string
  default     = "c4.8xlarge"
}

variable "compute_spot" {
  description = "Whether the compute nodes are spot instances, for jobs that can be restarted"
  type        = bool
  default     = false
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

variable "domain" {
  description = "Failure domain of the servers (auto: partition or zone of each; empty: each by itself)"
  type        = string
  default     = ""
}

variable "mount_point" {
  description = "Mount point on the login and compute nodes"
  type        = string
  default     = "/sharedscratch"
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
