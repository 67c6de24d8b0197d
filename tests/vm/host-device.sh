# host-device, with the machine's two real cards: the kernel brings those back to the host when their namespace ends,
# which it does with no other kind of interface. eth1 is what eth0 is cabled to.

ipam='"ipam": {"type": "static", "addresses": [{"address": "10.7.0.2/24"}, {"address": "fd07::2/64"}]}'
mac=52:54:00:00:00:10

config() {
    echo "{\"cniVersion\": \"1.1.0\", \"name\": \"uplink\", \"type\": \"host-device\", $1, $ipam}"
}

by_name=$(config '"device": "eth0"')

pci_address() {
    readlink -f "/sys/class/net/$1/device" | grep -oE '[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]' | tail -n 1
}

# The card as an administrator has set it up, and its neighbour.
set_up() {
    container c1
    ip link set eth0 mtu 1400 up
    ip link set eth1 up
    ip addr add 10.7.0.1/24 dev eth1
}

tear_down() {
    ip link set eth0 mtu 1500 down
    ip addr del 10.7.0.1/24 dev eth1
    ip link set eth1 down
}

card_is_home() {
    same "$mac" "$(cat /sys/class/net/eth0/address)" "MAC address"
    same 1400 "$(cat /sys/class/net/eth0/mtu)" MTU
    same 0x1003 "$(cat /sys/class/net/eth0/flags)" "up, broadcast, multicast"
    same "" "$(cat /sys/class/net/eth0/ifalias)" alias
    same "eth0 eth1" "$(cd /sys/class/net && echo eth* net* dev* | sed 's/ [a-z]*\*//g')"
}

test_an_interface_of_the_host_goes_and_comes_back() {
    outside cable 10.7.0.1/24 10.7.0.1/24
    at cable ip link set eth0 down
    ip addr flush dev cable
    at cable ip link set eth0 up
    container c1
    remember
    add host-device c1 "$(config '"device": "cable"')"
    not test -e /sys/class/net/cable
    reaches c1 10.7.0.1
    check host-device c1 "$(config '"device": "cable"')"
    del host-device c1 "$(config '"device": "cable"')"
    nothing_changed
    del host-device c1 "$(config '"device": "cable"')"
    nothing_changed
}

machine_a_card_is_found_by_whatever_names_it() {
    local selector kernelpath
    kernelpath=$(readlink -f /sys/class/net/eth0/device)
    set_up
    for selector in '"device": "eth0"' "\"hwaddr\": \"$mac\"" "\"pciBusID\": \"$(pci_address eth0)\"" \
        "\"kernelpath\": \"$kernelpath\"" "\"runtimeConfig\": {\"deviceID\": \"$(pci_address eth0)\"}"; do
        status host-device "$(config "$selector")"
        add host-device c1 "$(config "$selector")"
        said_contains "$mac"
        not test -e /sys/class/net/eth0
        same 1400 "$(at c1 cat /sys/class/net/eth0/mtu)"
        reaches c1 10.7.0.1
        check host-device c1 "$(config "$selector")"
        del host-device c1 "$(config "$selector")"
        card_is_home
        del host-device c1 "$(config "$selector")"
        card_is_home
    done
    tear_down
}

machine_del_returns_a_card_without_the_key_that_named_it() {
    local selector
    set_up
    for selector in "\"pciBusID\": \"$(pci_address eth0)\"" \
        "\"runtimeConfig\": {\"deviceID\": \"$(pci_address eth0)\"}"; do
        add host-device c1 "$(config "$selector")"
        not test -e /sys/class/net/eth0
        del host-device c1 "$(config '"device": ""')"
        card_is_home
    done
    tear_down
}

# The container changes the card, and its namespace ends without a DEL.
lose_card() {
    ifname=$1 add host-device c1 "$by_name"
    at c1 ip link set "$1" down
    at c1 ip link set "$1" mtu 1300 address 52:54:00:00:00:99
    at c1 ip link set "$1" promisc on up
    destroy c1
    eventually test -e "/sys/class/net/$2"
}

machine_gc_restores_a_card_after_its_namespace_ended() {
    # Under a free name and under a taken one: then the kernel gives the card another name.
    set_up
    for names in "net1 net1" "eth1 dev$(cat /sys/class/net/eth0/ifindex)"; do
        lose_card $names
        gc host-device "$by_name" c2
        card_is_home
        gc host-device "$by_name"
        card_is_home
        container c1
    done
    tear_down
}

machine_del_restores_a_card_after_its_namespace_ended() {
    set_up
    lose_card net1 net1
    ifname=net1 del host-device c1 "$by_name"
    card_is_home
    ifname=net1 del host-device c1 "$by_name"
    card_is_home
    tear_down
}

machine_the_next_container_uses_a_card_after_its_namespace_ended() {
    set_up
    lose_card net1 net1
    container c2
    add host-device c2 "$by_name"
    said_contains 52:54:00:00:00
    reaches c2 10.7.0.1
    ifname=net1 del host-device c1 "$by_name"
    reaches c2 10.7.0.1
    del host-device c2 "$by_name"
    card_is_home
    tear_down
}

machine_a_card_with_a_taken_name_stays_on_the_host() {
    set_up
    lose_card net1 net1
    ip link add name eth0 type dummy
    call GC host-device '' "$(with "$by_name" '"cni.dev/valid-attachments": []')" && fail "it is taken"
    said_contains "cannot restore device eth0, which is on the host as net1"
    same 1400 "$(cat /sys/class/net/net1/mtu)"
    ip link del eth0
    gc host-device "$by_name"
    card_is_home
    tear_down
}

machine_a_card_that_a_program_drives_only_gets_addresses() {
    local address config
    address=$(pci_address eth0)
    config=$(config "\"pciBusID\": \"$address\"")
    set_up
    modprobe uio_pci_generic
    echo uio_pci_generic >"/sys/bus/pci/devices/$address/driver_override"
    echo "$address" >"/sys/bus/pci/devices/$address/driver/unbind"
    not status host-device "$config"
    echo "$address" >/sys/bus/pci/drivers_probe
    add host-device c1 "$config"
    said_contains '10.7.0.2/24'
    same "lo" "$(at c1 ls /sys/class/net)"
    check host-device c1 "$config"
    echo "$address" >"/sys/bus/pci/devices/$address/driver/unbind"
    del host-device c1 "$config"
    echo >"/sys/bus/pci/devices/$address/driver_override"
    echo "$address" >/sys/bus/pci/drivers_probe
    eventually test -e /sys/class/net/eth0
    tear_down
}
