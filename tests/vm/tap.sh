# tap: what there is to see of it without a virtual machine in the virtual machine.

config='{"cniVersion": "1.1.0", "name": "vm", "type": "tap"}'

# of CONTAINER ATTRIBUTE
of() {
    at "$1" cat "/sys/class/net/eth0/$2"
}

test_every_key_counts() {
    local all
    container c1
    at c1 ip link add name br0 type bridge
    all=$(with "$config" '"mtu": 1400, "mac": "02:00:00:00:00:33", "owner": 107, "group": 36, "multiQueue": true, "bridge": "br0",
        "ipam": {"type": "host-local", "subnet": "10.6.0.0/24"}')
    status tap "$all"
    add tap c1 "$all"
    same 1400 "$(of c1 mtu)"
    same 02:00:00:00:00:33 "$(of c1 address)"
    same 107 "$(of c1 owner)"
    same 36 "$(of c1 group)"
    # IFF_TAP, IFF_MULTI_QUEUE, IFF_PERSIST, IFF_NO_PI
    same 0x1902 "$(of c1 tun_flags)"
    same br0 "$(at c1 sh -c 'basename $(readlink /sys/class/net/eth0/master)')"
    same 10.6.0.2 "$(address_of c1 eth0)"
    check tap c1 "$all"
    expect_fail 999 CHECK tap c1 "$(with "$all" '"owner": 108')"
    said_contains 'owner 108'
    del tap c1 "$all"
    not at c1 test -e /sys/class/net/eth0
    del tap c1 "$all"
}

# Users of the host.
users() {
    cp /etc/nsswitch.conf /tmp
    mount -t tmpfs tmpfs /etc
    cp /tmp/nsswitch.conf /etc
    printf '%s::%s:%s::/:/bin/sh\n' root 0 0 qemu 107 107 other 108 108 kvm 109 36 >/etc/passwd
    chmod 666 /dev/net/tun
}

# opens USER CONTAINER: the tap there.
opens() {
    at "$2" su "$1" -c 'tunctl -t eth0'
}

test_only_its_owner_may_use_it() {
    users
    container c1 c2 c3
    add tap c1 "$(with "$config" '"owner": 107')"
    opens qemu c1
    not opens other c1
    add tap c2 "$(with "$config" '"group": 36')"
    opens kvm c2
    not opens other c2
    add tap c3 "$config"
    opens other c3
}

test_a_context_that_the_host_does_not_have_is_an_error() {
    container c1
    remember
    expect_fail 999 ADD tap c1 "$(with "$config" '"selinuxContext": "system_u:system_r:container_t:s0"')"
    said_contains container_t
    not at c1 test -e /sys/class/net/eth0
    nothing_changed
}

test_an_interface_of_that_name_is_an_error() {
    container c1
    at c1 tunctl -t eth0
    expect_fail 999 ADD tap c1 "$config"
    said_contains 'already exists'
    same 0x1802 "$(of c1 tun_flags)" "it stays"
}
