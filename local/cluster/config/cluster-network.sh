# Folders in which daemons write what must not outlive the cluster, and what another cluster or containerd also writes.
mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns
mkdir -p /run/containerd && mount -t tmpfs tmpfs /run/containerd
mkdir -p /var/lib/cni && mount -t tmpfs tmpfs /var/lib/cni
mkdir -p /var/lib/kubelet && mount -t tmpfs tmpfs /var/lib/kubelet
mkdir -p /var/log/containers && mount -t tmpfs tmpfs /var/log/containers
# The machine's own network has the name `host`.
ip netns attach host $machine
# The line above needs the machine's process ids.
mount -t proc proc /proc
sysctl -qw net.ipv4.ip_forward=1
ip link set lo up
ip link add $bridge type bridge
ip addr add $bridge_address/24 dev $bridge
ip link set $bridge up
# The link of the former cluster may exist for a moment longer than its processes.
ip -n host link del $host_link 2> /dev/null || true
ip link add uplink type veth peer name $host_link netns host
ip link set uplink master $bridge up
ip -n host addr add $host_address/24 dev $host_link
ip -n host link set $host_link up
ip -n host route replace $pod_network via $bridge_address
ip route add default via $host_address
