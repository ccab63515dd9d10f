"""Meanings of the sections of a stack's settings and of their keys, for docs/reference/settings.md (docs/tables.py)."""

SECTIONS = {
    "kubeconfig": "The existing cluster of a stack with target `kubeconfig`. No other kubeconfig is read.",
    "namespace": "The Kubernetes namespace of the Helm release.",
    "release": "The Helm release of the chart `paddle-training`.",
    "storage": "The shared storage, on which all pods read and write data, checkpoints and models.",
    "network": "The network of the cluster (target `aws`): a new VPC, or an existing one.",
    "cluster": "The EKS cluster (target `aws`).",
    "nodes": "The machines on which the pods run (target `aws`): one managed node group.",
    "dns": "DNS names of the API server and of the file system (target `aws`).",
    "artifacts": "The S3 bucket for data and exported models (target `aws`).",
    "kms": "The key that encrypts file system, bucket, registry, disks and Kubernetes Secrets (target "
    "`aws`).",
    "bastion": "A machine for a shell with the shared file system (target `aws`).",
    "iam": "Properties of the IAM roles that the program creates (target `aws`).",
    "budget": "Alarms about the monthly cost (target `aws`).",
}

MEANINGS = {
    "kubeconfig.path": "Path of the kubeconfig file.",
    "kubeconfig.context": "Context in this file that selects the cluster.",
    "namespace.name": "Name of the namespace.",
    "namespace.create": "Create the namespace. With `false` it must exist, and the program neither labels nor removes "
    "it.",
    "release.name": "Name of the release.",
    "release.wait": "`pulumi up` waits until data Job and training Job are complete. With `false` it returns when "
    "they exist.",
    "release.keepManualValues": "`pulumi up` keeps chart values that somebody changed with `helm upgrade`. With "
    "`false` it resets them.",
    "storage.type": "How the pods mount the storage: EFS driver, NFS, a folder of each node, or an existing claim "
    "(PersistentVolumeClaim). With `efs-csi`, the file system requires TLS, IAM and the access point of every client; "
    "with `nfs` it requires nothing, and whoever reaches it is root on all files.",
    "storage.protect": "`pulumi destroy` keeps file system, bucket, registry, key and logs (target `aws`).",
    "storage.adopt": "Ids of the resources that a destroy kept, by the keys `fileSystem`, `accessPoint`, `bucket`, "
    "`registry` and `key`: the next `pulumi up` uses them again. `make kept` prints the commands that set them.",
    "storage.path": "With type `hostPath` the folder on each node; with `nfs` the exported folder.",
    "storage.server": "With type `nfs` the name or address of the server; empty: the EFS file system of the stack.",
    "storage.claim": "With type `existingClaim` the name of the claim.",
    "storage.throughput": "Throughput mode of the EFS file system.",
    "storage.backup": "Daily backups of the EFS file system, shards included; AWS Backup keeps each for 35 days.",
    "storage.archiveAfterDays": "Days without access after which EFS moves files to cheaper storage; 0: never.",
    "network.vpcCidr": "Address range of the new VPC.",
    "network.serviceCidr": "Address range of Kubernetes Services.",
    "network.zones": "Number of availability zones with subnets.",
    "network.availabilityZones": "Availability zones by name, instead of `zones`.",
    "network.nat": "NAT gateways, through which nodes reach the internet: one for the VPC, one per zone, or none. "
    "With `none` nodes reach only the AWS services that the program needs, through endpoints in the VPC.",
    "network.vpcId": "Id of an existing VPC, instead of a new one.",
    "network.subnetIds": "Ids of the subnets of the existing VPC.",
    "cluster.version": "Kubernetes version of EKS.",
    "cluster.admins": "IAM roles or users that administer the cluster; include the one that deploys.",
    "cluster.viewers": "IAM roles or users that may look at everything except Secrets.",
    "cluster.publicCidrs": "Address ranges that may reach the API server; empty: only the VPC.",
    "cluster.openToWorld": "Must be `true` if `publicCidrs` contains a network larger than /8, such as `0.0.0.0/0`.",
    "cluster.logRetentionDays": "Days to keep the logs of the control plane and of the pods in CloudWatch.",
    "cluster.podLogs": "Send the logs of all pods and nodes to CloudWatch, without metrics.",
    "cluster.upgradeAddons": "Each `up` upgrades the EKS add-ons to AWS' default version. `false`: they keep theirs, "
    "except in an upgrade of `cluster.version`.",
    "nodes.capacity": "On-demand instances, or spot instances (cheaper, but AWS may reclaim them).",
    "nodes.instanceTypes": "EC2 instance types, either all with GPUs (such as `g6.xlarge`) or all without. With `SPOT` "
    "the default is six types of one size.",
    "nodes.min": "Smallest number of nodes.",
    "nodes.desired": "Number of nodes; has no effect with `auto`.",
    "nodes.max": "Largest number of nodes. With `auto` and `singleZone: false`, each zone may have this number.",
    "nodes.auto": "The cluster autoscaler adds nodes for pending pods and removes empty ones, between `min` and "
    "`max`.",
    "nodes.fallback": "With `auto` and `SPOT`: on-demand nodes of the same types, up to `max`, while EC2 "
    "has no spot capacity.",
    "nodes.diskGib": "Disk of a node in GiB.",
    "nodes.amiRelease": "Release of the machine image. Empty: existing nodes keep theirs. `newest`: the newest one at "
    "each `pulumi up`; another release replaces all nodes.",
    "nodes.sshKeyName": "EC2 key pair for SSH; empty: Session Manager only.",
    "nodes.placementGroup": "Place all nodes close together (cluster placement group).",
    "nodes.singleZone": "All nodes in the first availability zone: AWS charges traffic between zones. "
    "`false`: a node group in each zone.",
    "dns.zone": "Name of the private zone, which only the VPC can resolve. Empty: `paddle.internal`; in an existing "
    "VPC, in which other stacks may be, `<project>-<stack>.internal`.",
    "dns.publicZoneId": "Id of an existing public hosted zone, in which `externalName` is created.",
    "dns.externalName": "Public DNS name of the API server.",
    "artifacts.uploads": "Files that `pulumi up` uploads to the bucket: object key → path of the local file.",
    "artifacts.keepVersionsDays": "Days to keep old versions of replaced objects.",
    "kms.keyArn": "ARN of an existing key, which is never destroyed; empty: the stack creates one.",
    "bastion.enabled": "Create the machine. It has no open port and is reached through AWS Session Manager.",
    "bastion.instanceType": "EC2 instance type of the machine.",
    "iam.permissionsBoundary": "ARN of the permissions boundary of all roles; empty: none.",
    "iam.path": "Path of all roles.",
    "budget.dollars": "Budget in dollars per month for everything with the tags of the stack; 0: no budget.",
    "budget.email": "Address that receives a mail at 80 % and at 100 % of the budget.",
}
