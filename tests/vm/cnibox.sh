# The tool under its own name, and what is true of the host as a whole.

test_the_host_holds_busybox_and_cnibox_and_nothing_else() {
    # The debug build of the same is for faults.sh.
    same "/bin/busybox /opt/cni/bin/cnibox /opt/cni/debug/cnibox" "$(find / -xdev -type f -perm -100 ! -path /init | sort | xargs)"
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
