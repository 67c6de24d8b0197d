# The tool under its own name, and what is true of the host as a whole.

test_the_host_holds_busybox_and_cnibox_and_nothing_else() {
    same "/bin/busybox /opt/cni/bin/cnibox" "$(find / -xdev -type f -perm -100 ! -path /init | sort | xargs)"
    for name in nft iptables bridge bash; do not command -v "$name"; done
    for link in "$cni_bin"/*; do same cnibox "$(basename "$(realpath "$link")")"; done
}

test_the_demo_is_not_shipped() {
    local status=0
    "$cni_bin/cnibox" demo || status=$?
    same 127 "$status"
}

test_every_plugin_answers_version_and_is_listed() {
    local name
    same "$(ls "$cni_bin" | grep -vx cnibox)" "$("$cni_bin/cnibox" --list | sort)"
    for name in $("$cni_bin/cnibox" --list); do
        plugin VERSION "$name" '' </dev/null | grep -q '"1.1.0"'
    done
}

# dbnet: the network of these tests, in both families, for cnibox. It is used once, so what DEL leaves is there.
dbnet() {
    export NETCONFPATH=/tmp/net.d CNI_PATH=$cni_bin PATH=$PATH:$cni_bin
    mkdir -p $NETCONFPATH
    cat >$NETCONFPATH/dbnet.conflist <<END
{"cniVersion": "1.1.0", "name": "dbnet", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}]}
END
    mkdir -p /tmp/www
    echo served >/tmp/www/index.html
    cnibox run -n dbnet -p 8080:80 -- true
    remember
}

is_served() {
    fetches "$1" http://192.0.2.1:8080/ served
    fetches "$1" 'http://[2001:db8::1]:8080/' served
}

# attached: the containers in the cache.
attached() {
    (cd /var/lib/cni/results && ls) | sed 's/^dbnet-//; s/-eth0$//' | xargs
}

# The kernel's number of a namespace decides, and not what is at its path.
test_gc_removes_what_has_ended_and_nothing_else() {
    local holder name
    dbnet
    container living held ended replaced
    for name in living held ended replaced; do cnibox add dbnet "$name" --container-id "$name"; done
    nsenter --net=/run/netns/held sh -c ': >/tmp/holding; exec sleep 1000' &
    holder=$!
    eventually test -e /tmp/holding
    for name in held ended replaced; do destroy "$name"; done
    container replaced
    same "" "$(cnibox gc --dry-run | grep -E 'living|held' || true)"
    eventually gc_leaves held living
    same "lo" "$(at replaced ls /sys/class/net)"
    reaches living "$(address_of host cni0)"
    same "" "$(cnibox gc)"
    kill $holder
    wait $holder || true
    eventually gc_leaves living
    destroy living
    eventually gc_leaves
    eventually nothing_changed
    same "" "$(find /run/cnibox /var/lib/cni/results /var/lib/cni/attachments -type f ! -name 'network-*')"
}

# gc_leaves CONTAINER...
gc_leaves() {
    cnibox gc
    same "$*" "$(attached)"
}

test_a_command_serves_a_page_and_gc_removes_what_a_kill_leaves() {
    local runner
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    dbnet
    cd /tmp/www
    cnibox run -n dbnet -p 8080:80 -- busybox httpd -f -p 80 &
    runner=$!
    eventually is_served internet
    is_served host
    kill -KILL $runner
    wait $runner || true
    not pgrep httpd
    eventually gc_leaves
    eventually nothing_changed
    same "" "$(find /run/cnibox /var/lib/cni/results -type f)"
}

test_a_command_with_a_name_is_entered_and_ends_with_sigterm() {
    local runner status=0
    dbnet
    cnibox run -n dbnet --name web --hostname web -- sh -c 'hostname; exec sleep 1000' >/tmp/said &
    runner=$!
    eventually grep -qx web /tmp/said
    cnibox exec web -- ip addr show dev eth0 | grep -q 'inet 10\.1\.'
    cnibox attachments | grep -q '/run/netns/web'
    kill $runner
    wait $runner || status=$?
    same 143 $status
    eventually nothing_changed
    same "" "$(find /run/cnibox /var/lib/cni/results /run/netns -type f ! -name 'network-*')"
}

test_busybox_init_creates_namespaces_from_files() {
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    dbnet
    mkdir -p /etc
    mount -t tmpfs tmpfs /etc
    mkdir -p /etc/cnibox/netns
    echo "dbnet -p 8080:80" >/etc/cnibox/netns/web
    echo "dbnet up0" >/etc/cnibox/netns/client
    CNIBOX_NETNS=/vm/netns sh /vm/S60cnibox-netns start
    serve web 80
    fetches internet http://192.0.2.1:8080/ web
    fetches client http://192.0.2.1:8080/ web
    kill %1 || true
    CNIBOX_NETNS=/vm/netns sh /vm/S60cnibox-netns stop
    same "internet" "$(ls /run/netns)"
    eventually nothing_changed
}

# The lines of docs/run.md as they are, in an /etc and /www of its own.
test_an_empty_host_serves_a_page_with_the_lines_of_the_document() {
    local lines
    export PATH=$PATH:$cni_bin
    mount -t tmpfs tmpfs /etc
    awk '/^From an empty / { on = 1 } /^- /{ on = 0 } on && sub(/^    /, "")' /vm/run.md >/tmp/lines
    same 5 "$(wc -l </tmp/lines)"
    sed '$ d' /tmp/lines >/tmp/begin
    lines=$(sed '$ !d' /tmp/lines)
    sh -eux /tmp/begin &
    eventually sh -c "$lines"
    same hello "$(sh -c "$lines")"
    rm -r /www
}
