# bridge on a host that has only a kernel.

dual_stack='{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}}'

test_two_containers_reach_each_other() {
    container c1 c2
    add bridge c1 "$dual_stack"
    add bridge c2 "$dual_stack"
    same 10.1.0.2 "$(address_of c1 eth0)"
    same fd00:1::3 "$(address_of c2 eth0 6)"
    reaches c1 10.1.0.3
    reaches c1 fd00:1::3
    reaches c2 10.1.0.1
    reaches c2 fd00:1::1
    check bridge c1 "$dual_stack"
    status bridge "$dual_stack"
}

test_masquerades_towards_the_outside() {
    local config
    config=$(with "$dual_stack" '"ipMasq": true')
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    serve internet 80
    container c1
    remember
    add bridge c1 "$config"
    fetches c1 http://192.0.2.2/ internet
    fetches c1 'http://[2001:db8::2]/' internet
    same "192.0.2.1 2001:db8::1" "$(peers internet | xargs)"
    check bridge c1 "$config"
    del bridge c1 "$config"
    ip link del cni0
    nothing_changed
}

# disguise CONTAINER: it changes its MAC address, which leaves it its addresses of IPv4.
disguise() {
    at "$1" ip link set eth0 down
    at "$1" ip link set eth0 address 02:00:00:00:00:66
    at "$1" ip link set eth0 up
}

test_with_macspoofchk_frames_from_another_mac_are_dropped() {
    container honest liar unchecked
    add bridge honest "$(with "$dual_stack" '"macspoofchk": true')"
    add bridge liar "$(with "$dual_stack" '"macspoofchk": true')"
    add bridge unchecked "$dual_stack"
    reaches liar 10.1.0.1
    disguise liar
    disguise unchecked
    reaches unchecked 10.1.0.1
    never_reaches liar 10.1.0.1
    reaches honest 10.1.0.1
}

test_twenty_adds_and_dels_at_once_succeed() {
    local i pids addresses
    remember
    for verb in add del; do
        pids=
        for i in $(seq 20); do
            [ $verb = del ] || container "c$i"
            $verb bridge "c$i" "$dual_stack" &
            pids="$pids $!"
        done
        for i in $pids; do wait "$i"; done
        [ $verb = add ] || break
        addresses=$(for i in $(seq 20); do address_of "c$i" eth0; address_of "c$i" eth0 6; done)
        same 40 "$(echo "$addresses" | sort -u | wc -l)"
        for i in $(seq 20); do reaches "c$i" 10.1.0.1; done
        reaches c1 "$(address_of c20 eth0 6)"
    done
    ip link del cni0
    nothing_changed
}

test_del_without_the_namespace_and_twice() {
    local config
    config=$(with "$dual_stack" '"ipMasq": true')
    container c1
    remember
    add bridge c1 "$config"
    destroy c1
    del bridge c1 "$config"
    del bridge c1 "$config"
    ip link del cni0
    nothing_changed
}

test_gc_leaves_what_is_valid() {
    local config
    config=$(with "$dual_stack" '"ipMasq": true')
    outside internet 192.0.2.1/24 192.0.2.2/24
    container c1 c2
    add bridge c1 "$config"
    add bridge c2 "$config"
    gc bridge "$config" c2
    not test -e /var/lib/cni/networks/net/10.1.0.2
    not at c1 test -e /sys/class/net/eth0
    check bridge c2 "$config"
    reaches c2 192.0.2.2
}

test_check_finds_what_is_missing() {
    container c1
    add bridge c1 "$dual_stack"
    at c1 ip addr del 10.1.0.2/24 dev eth0
    expect_fail 999 CHECK bridge c1 "$dual_stack"
    said_contains 10.1.0.2
}

# A kubelet on a busy host kills a plugin that takes too long, calls DEL, and tries again.
test_killed_at_any_time_it_can_be_tried_again() {
    local config delay_us pid
    config=$(with "$dual_stack" '"ipMasq": true, "macspoofchk": true')
    container c1 c2
    add bridge c2 "$config"
    remember
    for delay_us in $(seq 0 2500 50000); do
        (printf '%s' "$config" | plugin ADD bridge c1 >/dev/null) &
        pid=$!
        usleep "$delay_us"
        kill -9 $(pidof bridge) || true
        wait "$pid" || true
        del bridge c1 "$config"
        nothing_changed
    done
    add bridge c1 "$config"
    reaches c1 10.1.0.1
    del bridge c1 "$config"
    nothing_changed
}

test_a_second_add_is_refused_and_harms_nothing() {
    container c1
    add bridge c1 "$dual_stack"
    rm "$(result_of c1)"
    remember
    expect_fail 999 ADD bridge c1 "$dual_stack"
    nothing_changed
    same 10.1.0.2 "$(address_of c1 eth0)"
    reaches c1 10.1.0.1
}
