// A compute cluster with the parallel file system Skep. cluster.json has the same cluster for users
// without Bicep. Both have the same parameters and defaults. deploy/README.md has the steps.

@description('Region.')
param location string = resourceGroup().location

@description('First part of the names of all resources.')
@maxLength(20)
param clusterName string = 'skep'

@description('Storage servers: Standard_DS14_v2 with 10 data disks each, or L8s_v2, L32s_v2 or L80s_v2 with 1, 4 or 10 NVMe disks of their own each. The data on the NVMe disks is lost when a machine is deallocated.')
@allowed([
  'disks'
  'nvme-l8s'
  'nvme-l32s'
  'nvme-l80s'
])
param system string = 'disks'

@description('Size of the host of management and metadata, and of more metadata servers.')
param managementSize string = 'Standard_DS14_v2'

@description('Number of metadata servers, with the host of management.')
@minValue(1)
@maxValue(64)
param metadataServers int = 1

@description('Number of data disks of each metadata server. 0: only the disks of the machine itself.')
@minValue(0)
@maxValue(32)
param metadataDisks int = 1

@description('Size of the storage servers. Empty: that of the system.')
param storageSize string = ''

@description('Number of storage servers.')
@minValue(1)
@maxValue(64)
param storageServers int = 4

@description('Number of data disks of each storage server; each is one target. -1: that of the system. 0: only the disks of the machine itself.')
@minValue(-1)
@maxValue(32)
param storageDisks int = -1

@description('Type of the data disks.')
@allowed([
  'Premium_LRS'
  'StandardSSD_LRS'
  'Standard_LRS'
])
param diskType string = 'Premium_LRS'

@description('Size of each data disk; 512 GiB of Premium_LRS is a P20.')
@minValue(1)
@maxValue(32767)
param diskGiB int = 512

@description('Size of the login and compute nodes.')
param clientSize string = 'Standard_DS14_v2'

@description('Number of compute nodes.')
@minValue(0)
@maxValue(512)
param computeNodes int = 2

@description('The storage servers are a scale set, and the compute nodes are another one.')
param scaleSets bool = false

@description('Network adapters of the host for all machines (SR-IOV).')
param acceleratedNetworking bool = true

@description('Failure domain of the servers. auto: the fault domain and zone of each machine. Empty: each machine by itself.')
param domain string = 'auto'

@description('Mount point on the login and compute nodes.')
param mountPoint string = '/share/scratch'

@description('Addresses that may connect by ssh to the login node, such as 192.0.2.0/24.')
param accessNetwork string

@description('User for ssh.')
param adminUser string = 'skepadmin'

@description('Public key of this user.')
param sshKey string

@description('Image with cloud-init and Linux 5.19 or later.')
param image object = {
  publisher: 'Debian'
  offer: 'debian-12'
  sku: '12-gen2'
  version: 'latest'
}

@description('Token of the new cluster. Set it for a second deployment, to that of the first.')
@secure()
param token string = 'skep1-${replace(newGuid(), '-', '')}-${replace(newGuid(), '-', '')}${replace(newGuid(), '-', '')}'

@description('Address of the package of Skep that the image needs. Empty: the image contains Skep.')
param packageUrl string = ''

@description('SHA-256 of the package.')
param packageSha256 string = ''

@description('Additional features to enable: tune, monitor, job-accounting.')
param features string = 'tune monitor'

@description('Customisation profiles, scripts that each machine runs at the end, as URL#SHA256.')
param profiles string = ''

var managementAddress = '10.75.0.10'
var settings = join([
  'SKEP_MANAGEMENT=\'${managementAddress}\''
  'SKEP_TOKEN=\'${token}\''
  'SKEP_DISKS=\'auto\''
  'SKEP_DOMAIN=\'${domain}\''
  'SKEP_MOUNT=\'${mountPoint}\''
  'SKEP_FEATURES=\'${features}\''
  'SKEP_PACKAGE=\'${packageUrl}\''
  'SKEP_SHA256=\'${packageSha256}\''
  'SKEP_PROFILES=\'${profiles}\''
  ''
], '\n')
var nodeScript = loadTextContent('../user-data/skep-node.sh')

var systems = {
  disks: {
    size: 'Standard_DS14_v2'
    disks: 10
  }
  'nvme-l8s': {
    size: 'Standard_L8s_v2'
    disks: 0
  }
  'nvme-l32s': {
    size: 'Standard_L32s_v2'
    disks: 0
  }
  'nvme-l80s': {
    size: 'Standard_L80s_v2'
    disks: 0
  }
}
var sizeOfStorage = empty(storageSize) ? systems[system].size : storageSize
var disksOfStorage = storageDisks < 0 ? systems[system].disks : storageDisks

// The machines that are in no scale set. The servers of them share an availability set.
var management = {
  name: 'management'
  size: managementSize
  roles: 'management metadata'
  format: '${metadataServers} ${storageServers}'
  disks: metadataDisks
  isServer: true
}
var metadata = [for i in range(1, metadataServers - 1): {
  name: 'metadata-${i}'
  size: managementSize
  roles: 'metadata'
  format: ''
  disks: metadataDisks
  isServer: true
}]
var storage = [for i in range(1, scaleSets ? 0 : storageServers): {
  name: 'storage-${i}'
  size: sizeOfStorage
  roles: 'storage'
  format: ''
  disks: disksOfStorage
  isServer: true
}]
var login = {
  name: 'login'
  size: clientSize
  roles: 'client'
  format: ''
  disks: 0
  isServer: false
}
var compute = [for i in range(1, scaleSets ? 0 : computeNodes): {
  name: 'compute-${i}'
  size: clientSize
  roles: 'client'
  format: ''
  disks: 0
  isServer: false
}]
var machines = concat([management], metadata, storage, [login], compute)

resource placement 'Microsoft.Compute/proximityPlacementGroups@2023-09-01' = {
  name: clusterName
  location: location
  properties: {
    proximityPlacementGroupType: 'Standard'
  }
}

resource servers 'Microsoft.Compute/availabilitySets@2023-09-01' = {
  name: '${clusterName}-servers'
  location: location
  sku: {
    name: 'Aligned'
  }
  properties: {
    platformFaultDomainCount: 2
    platformUpdateDomainCount: 5
    proximityPlacementGroup: {
      id: placement.id
    }
  }
}

resource rules 'Microsoft.Network/networkSecurityGroups@2023-09-01' = {
  name: '${clusterName}-rules'
  location: location
  properties: {
    securityRules: [
      {
        name: 'ssh'
        properties: {
          priority: 100
          direction: 'Inbound'
          access: 'Allow'
          protocol: 'Tcp'
          sourceAddressPrefix: accessNetwork
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '22'
        }
      }
    ]
  }
}

resource network 'Microsoft.Network/virtualNetworks@2023-09-01' = {
  name: '${clusterName}-network'
  location: location
  properties: {
    addressSpace: {
      addressPrefixes: [
        '10.75.0.0/16'
      ]
    }
    subnets: [
      {
        name: 'cluster'
        properties: {
          addressPrefix: '10.75.0.0/20'
          networkSecurityGroup: {
            id: rules.id
          }
        }
      }
    ]
  }
}

resource loginAddress 'Microsoft.Network/publicIPAddresses@2023-09-01' = {
  name: '${clusterName}-login'
  location: location
  sku: {
    name: 'Standard'
  }
  properties: {
    publicIPAllocationMethod: 'Static'
  }
}

resource interfaces 'Microsoft.Network/networkInterfaces@2023-09-01' = [for machine in machines: {
  name: '${clusterName}-${machine.name}'
  location: location
  properties: {
    enableAcceleratedNetworking: acceleratedNetworking
    ipConfigurations: [
      {
        name: 'cluster'
        properties: {
          subnet: {
            id: '${network.id}/subnets/cluster'
          }
          privateIPAllocationMethod: machine.name == 'management' ? 'Static' : 'Dynamic'
          privateIPAddress: machine.name == 'management' ? managementAddress : null
          publicIPAddress: machine.name == 'login' ? { id: loginAddress.id } : null
        }
      }
    ]
  }
}]

resource hosts 'Microsoft.Compute/virtualMachines@2023-09-01' = [for (machine, i) in machines: {
  name: '${clusterName}-${machine.name}'
  location: location
  properties: {
    hardwareProfile: {
      vmSize: machine.size
    }
    proximityPlacementGroup: {
      id: placement.id
    }
    availabilitySet: machine.isServer ? { id: servers.id } : null
    storageProfile: {
      imageReference: image
      osDisk: {
        createOption: 'FromImage'
        managedDisk: {
          storageAccountType: 'Premium_LRS'
        }
        deleteOption: 'Delete'
      }
      dataDisks: [for lun in range(0, machine.disks): {
        lun: lun
        createOption: 'Empty'
        diskSizeGB: diskGiB
        caching: 'None'
        managedDisk: {
          storageAccountType: diskType
        }
        deleteOption: 'Delete'
      }]
    }
    networkProfile: {
      networkInterfaces: [
        {
          id: interfaces[i].id
        }
      ]
    }
    osProfile: {
      computerName: '${clusterName}-${machine.name}'
      adminUsername: adminUser
      customData: base64('#!/bin/sh\nSKEP_ROLES=\'${machine.roles}\'\nSKEP_FORMAT=\'${machine.format}\'\n${settings}${nodeScript}')
      linuxConfiguration: {
        disablePasswordAuthentication: true
        ssh: {
          publicKeys: [
            {
              path: '/home/${adminUser}/.ssh/authorized_keys'
              keyData: sshKey
            }
          ]
        }
      }
    }
  }
}]

// The scale sets. Overprovision is off, because additional servers would join the cluster.
var storageSet = {
  name: 'storage'
  size: sizeOfStorage
  capacity: storageServers
  roles: 'storage'
  disks: disksOfStorage
  faultDomains: 2
}
var computeSet = {
  name: 'compute'
  size: clientSize
  capacity: computeNodes
  roles: 'client'
  disks: 0
  faultDomains: null
}

resource sets 'Microsoft.Compute/virtualMachineScaleSets@2023-09-01' = [for set in [storageSet, computeSet]: if (scaleSets) {
  name: '${clusterName}-${set.name}'
  location: location
  sku: {
    name: set.size
    capacity: set.capacity
  }
  properties: {
    orchestrationMode: 'Uniform'
    overprovision: false
    singlePlacementGroup: set.capacity <= 100
    platformFaultDomainCount: set.faultDomains
    upgradePolicy: {
      mode: 'Manual'
    }
    proximityPlacementGroup: {
      id: placement.id
    }
    virtualMachineProfile: {
      storageProfile: {
        imageReference: image
        osDisk: {
          createOption: 'FromImage'
          managedDisk: {
            storageAccountType: 'Premium_LRS'
          }
        }
        dataDisks: [for lun in range(0, set.disks): {
          lun: lun
          createOption: 'Empty'
          diskSizeGB: diskGiB
          caching: 'None'
          managedDisk: {
            storageAccountType: diskType
          }
        }]
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'cluster'
            properties: {
              primary: true
              enableAcceleratedNetworking: acceleratedNetworking
              ipConfigurations: [
                {
                  name: 'cluster'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${network.id}/subnets/cluster'
                    }
                  }
                }
              ]
            }
          }
        ]
      }
      osProfile: {
        computerNamePrefix: '${clusterName}-${set.name}-'
        adminUsername: adminUser
        customData: base64('#!/bin/sh\nSKEP_ROLES=\'${set.roles}\'\nSKEP_FORMAT=\'\'\n${settings}${nodeScript}')
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUser}/.ssh/authorized_keys'
                keyData: sshKey
              }
            ]
          }
        }
      }
    }
  }
}]

output loginAddress string = loginAddress.properties.ipAddress
output managementAddress string = managementAddress
