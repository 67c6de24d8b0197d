# portmap on a host that has only a kernel.

network='{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
    "ipMasq": true, "hairpinMode": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}}'
ports='{"cniVersion": "1.1.0", "name": "net", "type": "portmap", "runtimeConfig": {"portMappings": [
    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
    {"hostPort": 53, "containerPort": 5353, "protocol": "udp"}]}}'

# published CONTAINER: a web server in it, which others reach by the host's port 8080.
published() {
    container "$1"
    add bridge "$1" "$network"
    add portmap "$1" "$ports"
    serve "$1" 80
}

test_a_port_is_reached_from_outside_the_host_and_neighbours() {
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    published c1
    container c2
    add bridge c2 "$network"
    fetches internet http://192.0.2.1:8080/ c1
    fetches internet 'http://[2001:db8::1]:8080/' c1
    same "192.0.2.2 2001:db8::2" "$(peers c1 | xargs)"
    fetches host http://127.0.0.1:8080/ c1
    fetches host http://192.0.2.1:8080/ c1
    fetches c2 http://192.0.2.1:8080/ c1
    fetches c2 'http://[fd00:1::1]:8080/' c1
    fetches c1 http://192.0.2.1:8080/ c1
    check portmap c1 "$ports"
}

# Datagrams to ports without a listener.
unheard() {
    at "$1" awk '$1 == "Udp:" && $3 ~ /^[0-9]/ { print $3 }' /proc/net/snmp
}

test_a_datagram_arrives_in_the_container() {
    outside internet 192.0.2.1/24 192.0.2.2/24
    published c1
    same 0 "$(unheard c1)"
    at internet timeout 1 nslookup name 192.0.2.1 || true
    not same 0 "$(unheard c1)"
    same 0 "$(unheard host)"
}

test_after_del_without_anything_the_port_is_closed_and_free() {
    outside internet 192.0.2.1/24 192.0.2.2/24
    published c1
    fetches internet http://192.0.2.1:8080/ c1
    container c2
    add bridge c2 "$network"
    expect_fail 999 ADD portmap c2 "$ports"
    said_contains c1
    rm "$(result_of c1)"
    del portmap c1 '{"cniVersion": "1.1.0", "name": "net", "type": "portmap"}'
    never_fetches internet http://192.0.2.1:8080/
    add portmap c2 "$ports"
    serve c2 80
    fetches internet http://192.0.2.1:8080/ c2
    gc portmap "$ports"
    never_fetches internet http://192.0.2.1:8080/
    expect_fail 999 CHECK portmap c2 "$ports"
}
