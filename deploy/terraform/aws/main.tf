# A compute cluster with its file system in AWS: network, servers, login node and compute nodes.
# variables.tf has the parameters, and ../node the user data.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws    = { source = "hashicorp/aws", version = "~> 5.0" }
    random = { source = "hashicorp/random", version = "~> 3.5" }
  }
}

provider "aws" {
  region = var.region
}

locals {
  systems = {
    ssd-c3 = { type = "c3.8xlarge", servers = 8 }
    ssd-i2 = { type = "i2.8xlarge", servers = 2 }
    hdd-d2 = { type = "d2.8xlarge", servers = 2 }
  }
  storage_type    = var.storage_type != "" ? var.storage_type : local.systems[var.system].type
  storage_servers = var.storage_servers > 0 ? var.storage_servers : local.systems[var.system].servers
  # The instance types have up to 24 local disks. If a type has fewer, EC2 ignores the other entries.
  own_disks = { for index, letter in split("", "bcdefghijklmnopqrstuvwxy") : letter => index }
}

# Terraform creates the token before the instances, so all instances can start at the same time.
resource "random_id" "cluster" {
  byte_length = 16
}

resource "random_id" "secret" {
  byte_length = 32
}

module "node" {
  source             = "../node"
  management_address = tolist(aws_network_interface.management.private_ips)[0]
  token              = "skep1-${random_id.cluster.hex}-${random_id.secret.hex}"
  metadata_servers   = var.metadata_servers
  storage_servers    = local.storage_servers
  domain             = var.domain
  mount_point        = var.mount_point
  package_url        = var.package_url
  package_sha256     = var.package_sha256
  features           = var.features
  profiles           = var.profiles
}

resource "aws_vpc" "cluster" {
  cidr_block           = "10.75.0.0/16"
  enable_dns_hostnames = true
  tags                 = { Name = var.name }
}

resource "aws_internet_gateway" "cluster" {
  vpc_id = aws_vpc.cluster.id
}

resource "aws_subnet" "cluster" {
  vpc_id                  = aws_vpc.cluster.id
  cidr_block              = "10.75.0.0/20"
  map_public_ip_on_launch = true
}

resource "aws_route_table" "cluster" {
  vpc_id = aws_vpc.cluster.id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.cluster.id
  }
}

resource "aws_route_table_association" "cluster" {
  subnet_id      = aws_subnet.cluster.id
  route_table_id = aws_route_table.cluster.id
}

# Places the instances near each other in the network, for the highest bandwidth between them.
resource "aws_placement_group" "cluster" {
  name     = var.name
  strategy = "cluster"
}

resource "aws_security_group" "inside" {
  name   = "${var.name}-inside"
  vpc_id = aws_vpc.cluster.id
  ingress {
    from_port = 0
    to_port   = 0
    protocol  = "-1"
    self      = true
  }
  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_security_group" "outside" {
  name   = "${var.name}-outside"
  vpc_id = aws_vpc.cluster.id
  ingress {
    from_port   = 22
    to_port     = 22
    protocol    = "tcp"
    cidr_blocks = [var.access_network]
  }
}

# The network interface of management. Its address is known before the instances exist, and never
# changes.
resource "aws_network_interface" "management" {
  subnet_id       = aws_subnet.cluster.id
  security_groups = [aws_security_group.inside.id]
}

resource "aws_eip" "management" {
  domain            = "vpc"
  network_interface = aws_network_interface.management.id
  depends_on        = [aws_internet_gateway.cluster]
}

resource "aws_instance" "management" {
  ami              = var.image
  instance_type    = var.management_type
  key_name         = var.key_name
  user_data_base64 = base64encode(module.node.user_data["management"])
  tags             = { Name = "${var.name}-management" }
  depends_on       = [aws_eip.management, aws_route_table_association.cluster]
  network_interface {
    device_index         = 0
    network_interface_id = aws_network_interface.management.id
  }
  metadata_options {
    http_tokens = "required"
  }
  ephemeral_block_device {
    device_name  = "/dev/sdb"
    virtual_name = "ephemeral0"
  }
}

resource "aws_instance" "metadata" {
  count                  = var.metadata_servers - 1
  ami                    = var.image
  instance_type          = var.management_type
  key_name               = var.key_name
  subnet_id              = aws_subnet.cluster.id
  vpc_security_group_ids = [aws_security_group.inside.id]
  user_data_base64       = base64encode(module.node.user_data["metadata"])
  tags                   = { Name = "${var.name}-metadata-${count.index + 2}" }
  depends_on             = [aws_route_table_association.cluster]
  metadata_options {
    http_tokens = "required"
  }
  ephemeral_block_device {
    device_name  = "/dev/sdb"
    virtual_name = "ephemeral0"
  }
}

resource "aws_instance" "storage" {
  count                  = local.storage_servers
  ami                    = var.image
  instance_type          = local.storage_type
  key_name               = var.key_name
  subnet_id              = aws_subnet.cluster.id
  placement_group        = aws_placement_group.cluster.id
  vpc_security_group_ids = [aws_security_group.inside.id]
  user_data_base64       = base64encode(module.node.user_data["storage"])
  tags                   = { Name = "${var.name}-storage-${count.index + 1}" }
  depends_on             = [aws_route_table_association.cluster]
  metadata_options {
    http_tokens = "required"
  }
  dynamic "ephemeral_block_device" {
    for_each = local.own_disks
    content {
      device_name  = "/dev/sd${ephemeral_block_device.key}"
      virtual_name = "ephemeral${ephemeral_block_device.value}"
    }
  }
  dynamic "ebs_block_device" {
    for_each = var.volume_gib > 0 ? [var.volume_gib] : []
    content {
      device_name = "/dev/sdz"
      volume_size = ebs_block_device.value
      volume_type = "gp3"
    }
  }
}

resource "aws_instance" "login" {
  ami                    = var.image
  instance_type          = var.client_type
  key_name               = var.key_name
  subnet_id              = aws_subnet.cluster.id
  placement_group        = aws_placement_group.cluster.id
  vpc_security_group_ids = [aws_security_group.inside.id, aws_security_group.outside.id]
  user_data_base64       = base64encode(module.node.user_data["client"])
  tags                   = { Name = "${var.name}-login" }
  depends_on             = [aws_route_table_association.cluster]
  metadata_options {
    http_tokens = "required"
  }
}

resource "aws_instance" "compute" {
  count                  = var.compute_nodes
  ami                    = var.image
  instance_type          = var.client_type
  key_name               = var.key_name
  subnet_id              = aws_subnet.cluster.id
  placement_group        = aws_placement_group.cluster.id
  vpc_security_group_ids = [aws_security_group.inside.id]
  user_data_base64       = base64encode(module.node.user_data["client"])
  tags                   = { Name = "${var.name}-compute-${count.index + 1}" }
  depends_on             = [aws_route_table_association.cluster]
  metadata_options {
    http_tokens = "required"
  }
  dynamic "instance_market_options" {
    for_each = var.compute_spot ? ["spot"] : []
    content {
      market_type = instance_market_options.value
    }
  }
}

output "login_address" {
  description = "Address for ssh"
  value       = aws_instance.login.public_ip
}

output "management_address" {
  description = "Address of management in the network of the cluster"
  value       = tolist(aws_network_interface.management.private_ips)[0]
}
