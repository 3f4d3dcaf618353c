# The user data of the instances of a cluster: the settings of each role, and then the text of
# deploy/user-data/skep-node.sh. This module needs no provider, so it can be used for both clouds.

terraform {
  required_version = ">= 1.5"
}

variable "management_address" {
  description = "Address of management"
  type        = string
  validation {
    condition     = can(regex("^[A-Za-z0-9.-]+$", var.management_address))
    error_message = "management_address must be an IPv4 address or a name."
  }
}

variable "token" {
  description = "Token of the cluster: skep1-ID-SECRET"
  type        = string
  sensitive   = true
  validation {
    condition     = can(regex("^skep1-[0-9a-f]{32}-[0-9a-f]{64}(@.*)?$", var.token))
    error_message = "token must have the form skep1-ID-SECRET."
  }
}

variable "metadata_servers" {
  description = "Number of metadata servers, with the host of management"
  type        = number
}

variable "storage_servers" {
  description = "Number of storage servers"
  type        = number
}

variable "disks" {
  description = "SKEP_DISKS of the servers; \"auto 4\" waits until a server has four blank disks"
  type        = object({ metadata = string, storage = string })
  default     = { metadata = "auto", storage = "auto" }
}

variable "domain" {
  description = "Failure domain of the servers (auto: that of the cloud; empty: each host by itself)"
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^[A-Za-z0-9._-]*$", var.domain))
    error_message = "domain must be auto, empty, or a name of letters, digits, and . _ -"
  }
}

variable "mount_point" {
  description = "Mount point on the login and compute nodes"
  type        = string
  validation {
    condition     = can(regex("^/[A-Za-z0-9._/-]+$", var.mount_point))
    error_message = "mount_point must be an absolute path of letters, digits, and . _ / -"
  }
}

variable "package_url" {
  description = "Address of the package of Skep that the image needs (empty: the image contains Skep)"
  type        = string
}

variable "package_sha256" {
  description = "SHA-256 of the package"
  type        = string
}

variable "features" {
  description = "Additional features to enable: tune, monitor, job-accounting"
  type        = list(string)
}

variable "profiles" {
  description = "Customisation profiles, scripts that each instance runs at the end, as URL#SHA256"
  type        = list(string)
  validation {
    condition     = !anytrue([for it in var.profiles : can(regex("['\\s]", it))])
    error_message = "A profile must not contain quotes or spaces."
  }
}

locals {
  format = "${var.metadata_servers} ${var.storage_servers}"
  hosts = {
    management = { roles = "management metadata", format = local.format, disks = var.disks.metadata }
    metadata   = { roles = "metadata", format = "", disks = var.disks.metadata }
    storage    = { roles = "storage", format = "", disks = var.disks.storage }
    client     = { roles = "client", format = "", disks = "none" }
  }
}

output "user_data" {
  description = "User data of the host of management, other metadata servers, storage servers, clients"
  sensitive   = true
  value = { for name, host in local.hosts : name => join("\n", [
    "#!/bin/sh",
    "SKEP_ROLES='${host.roles}'",
    "SKEP_MANAGEMENT='${var.management_address}'",
    "SKEP_TOKEN='${var.token}'",
    "SKEP_FORMAT='${host.format}'",
    "SKEP_DISKS='${host.disks}'",
    "SKEP_DOMAIN='${var.domain}'",
    "SKEP_MOUNT='${var.mount_point}'",
    "SKEP_FEATURES='${join(" ", var.features)}'",
    "SKEP_PACKAGE='${var.package_url}'",
    "SKEP_SHA256='${var.package_sha256}'",
    "SKEP_PROFILES='${join(" ", var.profiles)}'",
    file("${path.module}/../../user-data/skep-node.sh"),
  ]) }
}
