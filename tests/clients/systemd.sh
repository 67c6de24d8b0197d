# systemd is the first process of a machine in namespaces. Its units are those of packaging/systemd and of the tests.

readonly units=/etc/systemd/system

prepare() {
    local target
    mount -t tmpfs tmpfs /etc/systemd
    mount -t tmpfs tmpfs /usr/libexec
    mkdir -p "$units" /etc/cnibox/netns
    install -D packaging/netns /usr/libexec/cnibox/netns
    cp packaging/systemd/*.service "$units"
    # The services of the tests' machine are not those of this one.
    for target in sysinit basic shutdown umount network multi-user; do echo '[Unit]' >"$units/$target.target"; done
    export SYSTEMD_UNIT_PATH=$units
    make_cgroup
    "$plugins/cnibox" networks create dbnet
}

# A control group of the test's own, in which systemd makes others. It outlives namespaces.
make_cgroup() {
    mkdir "$node/cgroup"
    mount -t cgroup2 cgroup2 "$node/cgroup"
    cgroup=$node/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/cnibox-test-$$
    mkdir "$cgroup"
    trap 'cut_power || true; eventually remove_cgroup' EXIT
}

remove_cgroup() {
    find "$cgroup" -depth -type d -exec rmdir {} +
}

# systemd would change sysctls of the tests' machine, so they are read-only for it.
boot() {
    # shellcheck disable=SC2016
    local script='
        echo $$ >"$1/cgroup.procs"
        exec unshare --pid --mount --cgroup --ipc --uts --fork --kill-child --mount-proc bash -euc "
            umount -l /sys/fs/cgroup
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
            for directory in /proc/sys/fs /proc/sys/kernel; do
                mount --bind \$directory \$directory
                mount -o remount,bind,ro \$directory
            done
            touch /run/console
            mount --bind /run/console /dev/console
            exec env container=test /lib/systemd/systemd --system --unit=multi-user.target \
                --log-target=console --show-status=false
        "'
    bash -euc "$script" boot "$cgroup" &
    machine=$!
    eventually machine systemctl is-system-running --wait
}

# machine COMMAND...: runs it there.
machine() {
    nsenter --target "$(pgrep -P "$machine")" --mount --pid --cgroup --ipc --uts "$@"
}

cut_power() {
    kill -KILL "$(pgrep -P "$machine")"
    wait "$machine" || true
}

# The commands of the README after a line that begins with this word in bold.
recipe() {
    awk -v title="**$1**" 'index($0, title) == 1 { on = 1; next } /^(\*\*|#)/ { on = 0 } on && sub(/^    /, "")' README.md
}

fetches_hostname() {
    [[ $(busybox wget -q -O - http://127.0.0.1:8080/etc/hostname) == "$(cat /etc/hostname)" ]]
}

test_the_lines_of_the_readme_serve_a_page() {
    boot
    [[ $(recipe systemd | wc -l) == 3 ]]
    machine bash -euxc "$(recipe systemd)"
    eventually fetches_hostname
    machine systemctl stop cnibox-netns@web
    machine bash -c '[[ ! -e /run/netns/web ]]'
    machine systemctl stop 'run-*.service'
    eventually nothing_is_left
}

# The service is that of the head of the unit.
test_a_service_begins_and_ends_with_its_namespace() {
    local round
    echo 'dbnet -p 8080:80' >/etc/cnibox/netns/web
    {
        sed -n 's/^#     //p' packaging/systemd/cnibox-netns@.service
        echo "ExecStart=/bin/busybox httpd -f -p 80 -h $node/root/www"
    } >"$units/page.service"
    boot
    for round in 1 2; do
        machine systemctl start page
        eventually serves 127.0.0.1:8080
        machine systemctl stop cnibox-netns@web
        not machine systemctl is-active page
        machine bash -c '[[ ! -e /run/netns/web ]]'
        eventually nothing_is_left
    done
    not machine systemctl start cnibox-netns@missing
    # After a power cut, the unit that is enabled replaces what is left.
    machine systemctl enable cnibox-netns@web
    machine systemctl start page
    eventually serves 127.0.0.1:8080
    cut_power
    boot
    machine systemctl is-active cnibox-netns@web
    machine systemctl start page
    eventually serves 127.0.0.1:8080
    machine systemctl stop cnibox-netns@web
    eventually nothing_is_left
}

# As dpkg unpacks and configures it. The machine of the tests may have a policy that no service starts.
install_package_with_units() {
    install_package
    dpkg-deb --control "$packages"/cnibox_*.deb "$node/control"
    mount --bind "$node/package/usr/lib/cni" /usr/lib/cni
    mount --bind "$node/package/usr/libexec" /usr/libexec
    mount -t tmpfs tmpfs /usr/lib/systemd/system
    cp "$node/package/usr/lib/systemd/system/"* /usr/lib/systemd/system
    rm "$units"/cnibox-*
    export SYSTEMD_UNIT_PATH=$units:/usr/lib/systemd/system
    if [[ -e /usr/sbin/policy-rc.d ]]; then mount --bind /bin/true /usr/sbin/policy-rc.d; fi
}

# script NAME ARGUMENT...: a script of the package, as dpkg runs it.
script() {
    machine env DPKG_MAINTSCRIPT_PACKAGE=cnibox "$node/control/$1" "${@:2}"
}

test_the_debian_package_starts_nothing_and_its_removal_ends_namespaces_and_the_daemon() {
    local unit
    install_package_with_units
    echo 'dbnet -p 8080:80' >/etc/cnibox/netns/web
    boot
    script postinst configure ''
    for unit in cnibox-dhcp.socket cnibox-dhcp.service; do
        not machine systemctl is-active "$unit"
        not machine systemctl is-enabled "$unit"
    done
    machine systemctl enable --now cnibox-dhcp.socket
    script postinst configure ''
    [[ $(ls /var/lib/systemd/deb-systemd-helper-enabled) == *cnibox-dhcp.socket* ]]
    machine systemctl start cnibox-dhcp.service cnibox-netns@web
    machine bash -c '[[ -e /run/netns/web ]]'
    # An upgrade stops nothing, and the daemon is that of the new package.
    script prerm upgrade 1
    machine systemctl is-active cnibox-netns@web cnibox-dhcp.service
    script postinst configure 0.1.0
    machine systemctl is-active cnibox-netns@web cnibox-dhcp.service
    script prerm remove
    for unit in cnibox-dhcp.socket cnibox-dhcp.service cnibox-netns@web; do not machine systemctl is-active "$unit"; done
    machine bash -c '[[ ! -e /run/netns/web ]]'
    eventually nothing_is_left
    rm /usr/lib/systemd/system/cnibox-*
    script postrm remove
    script postrm purge
    not grep . <<<"$(find "$units" /var/lib/systemd -name 'cnibox-*')"
}
