# ptp is veth by the reference's name; so is what is tested here, once.

test_it_connects_as_veth_does() {
    local config='{"cniVersion": "0.4.0", "name": "net", "type": "ptp", "ipMasq": true,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}'
    outside internet 192.0.2.1/24 192.0.2.2/24
    serve internet 80
    container c1
    remember
    add ptp c1 "$config"
    fetches c1 http://192.0.2.2/ internet
    same 192.0.2.1 "$(peers internet)"
    check ptp c1 "$config"
    del ptp c1 "$config"
    nothing_changed
}
