# The bundle for hosts offline: /vm/bundle.tar.gz is that of packaging/build, with the executable under test.

test_the_bundle_installs_with_busybox_alone_and_a_container_serves_a_page() {
    local bridge='{"cniVersion": "1.0.0", "name": "web", "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}'
    local portmap='{"cniVersion": "1.0.0", "name": "web", "type": "portmap",
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}'
    # In place of the plugins of the other tests.
    mount -t tmpfs tmpfs "$cni_bin"
    tar -C /tmp -xzf /vm/bundle.tar.gz
    /tmp/cnibox-*/install.sh
    same "$(/tmp/cnibox-*/cnibox list | sort | xargs)" "$(ls "$cni_bin" | grep -vx cnibox | xargs)"
    container c1
    add bridge c1 "$bridge"
    add portmap c1 "$portmap"
    serve c1 80
    fetches host http://10.1.0.2/ c1
    fetches host http://127.0.0.1:8080/ c1
    del portmap c1 "$portmap"
    del bridge c1 "$bridge"
    "$cni_bin/cnibox" uninstall
    same '' "$(ls -A "$cni_bin")"
}

test_a_changed_bundle_installs_nothing() {
    mount -t tmpfs tmpfs "$cni_bin"
    tar -C /tmp -xzf /vm/bundle.tar.gz
    echo >>"$(echo /tmp/cnibox-*/image.tar)"
    not /tmp/cnibox-*/install.sh
    same '' "$(ls -A "$cni_bin")"
}
