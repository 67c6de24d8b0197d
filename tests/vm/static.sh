# static on a host that has only a kernel.

test_written_addresses_and_routes_carry_traffic() {
    local config='{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipMasq": true, "ipam": {"type": "static",
            "addresses": [{"address": "10.1.0.77/24", "gateway": "10.1.0.1"},
                {"address": "fd00:1::77/64", "gateway": "fd00:1::1"}],
            "routes": [{"dst": "192.0.2.0/24"}, {"dst": "2001:db8::/64", "gw": "fd00:1::1"}]}}'
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    serve internet 80
    container c1
    remember
    add bridge c1 "$config"
    same 10.1.0.77 "$(address_of c1 eth0)"
    same fd00:1::77 "$(address_of c1 eth0 6)"
    fetches c1 http://192.0.2.2/ internet
    fetches c1 'http://[2001:db8::2]/' internet
    check bridge c1 "$config"
    del bridge c1 "$config"
    ip link del cni0
    nothing_changed
}
