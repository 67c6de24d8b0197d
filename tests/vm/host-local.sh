# host-local on a host that has only a kernel. The tests of a power failure are in power-loss.sh.

three='{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.12"}}'

test_a_range_is_exhausted_and_del_gives_back() {
    container c1 c2 c3 c4
    for name in c1 c2 c3; do add bridge "$name" "$three"; done
    expect_fail 999 ADD bridge c4 "$three"
    not at c4 test -e /sys/class/net/eth0
    same "$(printf 'c2\r\neth0')" "$(cat /var/lib/cni/networks/net/10.1.0.11)"
    del bridge c2 "$three"
    add bridge c4 "$three"
    same 10.1.0.11 "$(address_of c4 eth0)"
    reaches c4 10.1.0.12
}

test_excluded_addresses_are_not_given_out() {
    local config='{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "exclude": ["10.1.0.0/25"]}}'
    container c1
    add bridge c1 "$config"
    same 10.1.0.128 "$(address_of c1 eth0)"
    reaches c1 10.1.0.1
}

# The same as `add` on a slow machine, where a call does not get the lock before its timeout: code 11 asks for a retry.
add_with_retries() {
    local tries=10
    until call ADD "$@"; do
        said_contains '"code": 11,'
        tries=$((tries - 1))
        [ $tries -gt 0 ] || fail "the last retry of $2 said: $said"
    done
}

test_many_processes_never_share_an_address() {
    local i pids= network='{"cniVersion": "1.1.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/26"}}'
    for i in $(seq 61); do
        add_with_retries host-local "c$i" "$network" &
        pids="$pids $!"
    done
    for i in $pids; do wait "$i"; done
    same 61 "$(cat /var/lib/cni/networks/net/10.1.0.* | tr '\r' '\n' | grep -o 'c[0-9]*$' | sort -u | wc -l)"
    same 61 "$(ls /var/lib/cni/networks/net | grep -c '^10')"
    expect_fail 999 ADD host-local c62 "$network"
    expect_fail 50 STATUS host-local '' "$network"
    gc host-local "$network" c61
    same 1 "$(ls /var/lib/cni/networks/net | grep -c '^10')"
}
