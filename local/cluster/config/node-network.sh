ip netns add $name
ip -n $name link set lo up
ip link add $link type veth peer name eth0 netns $name
ip link set $link master $bridge up
ip -n $name addr add $address/24 dev eth0
ip -n $name link set eth0 up
ip -n $name route add default via $bridge_address
nsenter --net=/run/netns/$name sysctl -qw net.ipv4.ip_forward=1
ip route add $pod_subnet via $address
