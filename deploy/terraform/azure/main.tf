# A compute cluster with its file system in Azure: network, servers, login node and compute nodes.
# variables.tf has the parameters, and ../node the user data.

terraform {
  required_version = ">= 1.5"
  required_providers {
    azurerm = { source = "hashicorp/azurerm", version = "~> 3.100" }
    random  = { source = "hashicorp/random", version = "~> 3.5" }
  }
}

provider "azurerm" {
  features {}
}

locals {
  management_address = "10.75.0.10"
  metadata = merge(
    { management = "management" },
    { for index in range(2, var.metadata_servers + 1) : "metadata-${index}" => "metadata" },
  )
  systems = {
    disks     = { size = "Standard_DS14_v2", data_disks = 10, own_disks = 0 }
    nvme-l8s  = { size = "Standard_L8s_v2", data_disks = 0, own_disks = 1 }
    nvme-l32s = { size = "Standard_L32s_v2", data_disks = 0, own_disks = 4 }
    nvme-l80s = { size = "Standard_L80s_v2", data_disks = 0, own_disks = 10 }
  }
  system        = local.systems[var.system]
  storage_size  = var.storage_size == "" ? local.system.size : var.storage_size
  storage_disks = var.storage_disks < 0 ? local.system.data_disks : var.storage_disks
  # The disks of a machine itself are there from its start. Their number is known only for the size of
  # the system.
  awaited_disks = local.storage_disks + (var.storage_size == "" ? local.system.own_disks : 0)
  # Scale sets have their own resources.
  storage = { for index in range(1, var.scale_sets ? 1 : var.storage_servers + 1) : "storage-${index}" => "storage" }
  clients = merge(
    { login = "client" },
    { for index in range(1, var.scale_sets ? 1 : var.compute_nodes + 1) : "compute-${index}" => "client" },
  )
  scale_sets = {
    for name, set in {
      storage = {
        kind          = "storage"
        size          = local.storage_size
        instances     = var.storage_servers
        data_disks    = local.storage_disks
        fault_domains = 2
      }
      compute = {
        kind          = "client"
        size          = var.client_size
        instances     = var.compute_nodes
        data_disks    = 0
        fault_domains = null
      }
    } : name => set if var.scale_sets
  }
  servers = merge(local.metadata, local.storage)
  hosts   = merge(local.servers, local.clients)
  disks = merge([for name, kind in local.servers : {
    for lun in range(kind == "storage" ? local.storage_disks : var.metadata_disks) :
    "${name}-${lun}" => { host = name, lun = lun }
  }]...)
}

# Terraform creates the token before the machines, so all machines can start at the same time.
resource "random_id" "cluster" {
  byte_length = 16
}

resource "random_id" "secret" {
  byte_length = 32
}

module "node" {
  source             = "../node"
  management_address = local.management_address
  token              = "skep1-${random_id.cluster.hex}-${random_id.secret.hex}"
  metadata_servers   = var.metadata_servers
  storage_servers    = var.storage_servers
  disks              = { metadata = "auto ${var.metadata_disks}", storage = "auto ${local.awaited_disks}" }
  domain             = var.domain
  mount_point        = var.mount_point
  package_url        = var.package_url
  package_sha256     = var.package_sha256
  features           = var.features
  profiles           = var.profiles
}

resource "azurerm_resource_group" "cluster" {
  name     = var.name
  location = var.location
}

resource "azurerm_proximity_placement_group" "cluster" {
  name                = var.name
  location            = azurerm_resource_group.cluster.location
  resource_group_name = azurerm_resource_group.cluster.name
}

resource "azurerm_availability_set" "servers" {
  name                         = "${var.name}-servers"
  location                     = azurerm_resource_group.cluster.location
  resource_group_name          = azurerm_resource_group.cluster.name
  proximity_placement_group_id = azurerm_proximity_placement_group.cluster.id
  platform_fault_domain_count  = 2
}

resource "azurerm_virtual_network" "cluster" {
  name                = "${var.name}-network"
  location            = azurerm_resource_group.cluster.location
  resource_group_name = azurerm_resource_group.cluster.name
  address_space       = ["10.75.0.0/16"]
}

resource "azurerm_subnet" "cluster" {
  name                 = "cluster"
  resource_group_name  = azurerm_resource_group.cluster.name
  virtual_network_name = azurerm_virtual_network.cluster.name
  address_prefixes     = ["10.75.0.0/20"]
}

resource "azurerm_network_security_group" "cluster" {
  name                = "${var.name}-rules"
  location            = azurerm_resource_group.cluster.location
  resource_group_name = azurerm_resource_group.cluster.name
  security_rule {
    name                       = "ssh"
    priority                   = 100
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "Tcp"
    source_address_prefix      = var.access_network
    source_port_range          = "*"
    destination_address_prefix = "*"
    destination_port_range     = "22"
  }
}

resource "azurerm_subnet_network_security_group_association" "cluster" {
  subnet_id                 = azurerm_subnet.cluster.id
  network_security_group_id = azurerm_network_security_group.cluster.id
}

resource "azurerm_public_ip" "login" {
  name                = "${var.name}-login"
  location            = azurerm_resource_group.cluster.location
  resource_group_name = azurerm_resource_group.cluster.name
  allocation_method   = "Static"
  sku                 = "Standard"
}

resource "azurerm_network_interface" "hosts" {
  for_each                      = local.hosts
  name                          = "${var.name}-${each.key}"
  location                      = azurerm_resource_group.cluster.location
  resource_group_name           = azurerm_resource_group.cluster.name
  enable_accelerated_networking = var.accelerated_networking
  ip_configuration {
    name                          = "cluster"
    subnet_id                     = azurerm_subnet.cluster.id
    private_ip_address_allocation = each.key == "management" ? "Static" : "Dynamic"
    private_ip_address            = each.key == "management" ? local.management_address : null
    public_ip_address_id          = each.key == "login" ? azurerm_public_ip.login.id : null
  }
}

resource "azurerm_linux_virtual_machine" "hosts" {
  for_each                     = local.hosts
  name                         = "${var.name}-${each.key}"
  location                     = azurerm_resource_group.cluster.location
  resource_group_name          = azurerm_resource_group.cluster.name
  size                         = lookup({ client = var.client_size, storage = local.storage_size }, each.value, var.server_size)
  network_interface_ids        = [azurerm_network_interface.hosts[each.key].id]
  proximity_placement_group_id = azurerm_proximity_placement_group.cluster.id
  availability_set_id          = each.value == "client" ? null : azurerm_availability_set.servers.id
  admin_username               = var.admin_user
  custom_data                  = base64encode(module.node.user_data[each.value])
  admin_ssh_key {
    username   = var.admin_user
    public_key = var.ssh_key
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "Premium_LRS"
  }
  source_image_reference {
    publisher = var.image.publisher
    offer     = var.image.offer
    sku       = var.image.sku
    version   = var.image.version
  }
}

# A machine gets its data disks after it has started. So its user data waits for this number of disks.
resource "azurerm_managed_disk" "data" {
  for_each             = local.disks
  name                 = "${var.name}-${each.key}"
  location             = azurerm_resource_group.cluster.location
  resource_group_name  = azurerm_resource_group.cluster.name
  storage_account_type = var.disk_type
  create_option        = "Empty"
  disk_size_gb         = var.disk_gib
}

resource "azurerm_virtual_machine_data_disk_attachment" "data" {
  for_each           = local.disks
  managed_disk_id    = azurerm_managed_disk.data[each.key].id
  virtual_machine_id = azurerm_linux_virtual_machine.hosts[each.value.host].id
  lun                = each.value.lun
  caching            = "None"
}

# The scale sets. Overprovision is off, because additional servers would join the cluster.
resource "azurerm_linux_virtual_machine_scale_set" "sets" {
  for_each                     = local.scale_sets
  name                         = "${var.name}-${each.key}"
  location                     = azurerm_resource_group.cluster.location
  resource_group_name          = azurerm_resource_group.cluster.name
  sku                          = each.value.size
  instances                    = each.value.instances
  overprovision                = false
  single_placement_group       = each.value.instances <= 100
  platform_fault_domain_count  = each.value.fault_domains
  proximity_placement_group_id = azurerm_proximity_placement_group.cluster.id
  computer_name_prefix         = "${var.name}-${each.key}-"
  admin_username               = var.admin_user
  custom_data                  = base64encode(module.node.user_data[each.value.kind])
  admin_ssh_key {
    username   = var.admin_user
    public_key = var.ssh_key
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "Premium_LRS"
  }
  dynamic "data_disk" {
    for_each = range(each.value.data_disks)
    content {
      lun                  = data_disk.value
      caching              = "None"
      create_option        = "Empty"
      disk_size_gb         = var.disk_gib
      storage_account_type = var.disk_type
    }
  }
  network_interface {
    name                          = "cluster"
    primary                       = true
    enable_accelerated_networking = var.accelerated_networking
    ip_configuration {
      name      = "cluster"
      primary   = true
      subnet_id = azurerm_subnet.cluster.id
    }
  }
  source_image_reference {
    publisher = var.image.publisher
    offer     = var.image.offer
    sku       = var.image.sku
    version   = var.image.version
  }
}

output "login_address" {
  description = "Address for ssh"
  value       = azurerm_public_ip.login.ip_address
}

output "management_address" {
  description = "Address of management in the network of the cluster"
  value       = local.management_address
}
