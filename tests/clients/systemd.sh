# systemd is the first process of a machine in namespaces. Its units are those of packaging/systemd and of the tests.

# shellcheck source=tests/clients/machine.sh
source tests/clients/machine.sh

readonly units=/etc/systemd/system

prepare() {
    local target
    mount -t tmpfs tmpfs /etc/systemd
    mount -t tmpfs tmpfs /usr/libexec
    mkdir -p "$units" /etc/cnibox/netns
    install -D packaging/netns /usr/libexec/cnibox/netns
    cp packaging/systemd/*.{service,timer} "$units"
    # The services of the tests' machine are not those of this one.
    for target in sysinit basic shutdown umount network timers multi-user; do echo '[Unit]' >"$units/$target.target"; done
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

boot() {
    start_machine "$cgroup"
    eventually machine systemctl is-system-running --wait
}

cut_power() {
    kill -KILL "$(pgrep -P "$machine")"
    wait "$machine" || true
}

# The commands of docs/run.md after a line that begins with this word in bold.
recipe() {
    awk -v title="**$1**" 'index($0, title) == 1 { on = 1; next } /^(\*\*|#)/ { on = 0 } on && sub(/^    /, "")' docs/run.md
}

fetches_hostname() {
    [[ $(busybox wget -q -O - http://127.0.0.1:8080/etc/hostname) == "$(cat /etc/hostname)" ]]
}

test_the_lines_of_the_document_serve_a_page() {
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

# A container with published ports: cell NAME PORT. It has no process: the kernel tells that of its namespace.
cell() {
    machine ip netns add "$1"
    machine "$plugins/cnibox" add dbnet "$1" --container-id "$1" -p "$2:80" >/dev/null
}

cells() {
    (cd /var/lib/cni/results && printf '%s\n' dbnet-*-eth0 | sed 's/^dbnet-//; s/-eth0$//')
}

# As if the runs of gc so far were ten minutes ago.
ten_minutes_pass() {
    python3 -c '
import json
memory = json.load(open("/run/cnibox/confirm"))
memory["run"] -= 600
for found in memory["found"]:
    found["since"] -= 600
json.dump(memory, open("/run/cnibox/confirm", "w"))'
}

# Each run prints 21 such lines: for 20 attachments and for the namespace of the command.
gc_ran_twice() {
    (($(grep -c ' waits for a run in ' /run/gc.log) >= 42))
}

test_the_timer_removes_the_leaks_of_20_killed_containers_and_nothing_else() {
    local number
    mkdir -p "$units"/cnibox-gc.{timer,service}.d
    printf '[Timer]\nOnBootSec=\nOnActiveSec=1\nOnUnitInactiveSec=1\nRandomizedDelaySec=0\nAccuracySec=100ms\n' \
        >"$units/cnibox-gc.timer.d/soon.conf"
    printf '[Service]\nStandardOutput=append:/run/gc.log\nStandardError=append:/run/gc.log\n' \
        >"$units/cnibox-gc.service.d/log.conf"
    boot
    for number in {1..3}; do cell "living$number" "$((9100 + number))"; done
    machine nft list ruleset >"$node/rules"
    for number in {1..20}; do
        cell "killed$number" "$((9000 + number))"
        machine ip netns del "killed$number"
    done
    machine bash -c "$plugins/cnibox run --name command -n dbnet -- touch /run/runs & wait; [[ -e /run/runs ]]"
    machine bash -c "$plugins/cnibox run --name command -n dbnet -- sh -c 'rm /run/runs; exec sleep 1000' & until [[ ! -e /run/runs ]]; do sleep 0.1; done; kill -KILL \$!"
    machine systemctl enable --now cnibox-gc.timer
    [[ -L $units/timers.target.wants/cnibox-gc.timer ]]
    eventually test -s /run/cnibox/confirm
    eventually gc_ran_twice
    [[ $(cells | wc -l) == 24 ]]
    not grep -v ' waits for a run in ' /run/gc.log
    machine systemctl stop cnibox-gc.timer
    ten_minutes_pass
    machine systemctl start cnibox-gc.timer
    eventually grep -q 'removed namespace /run/netns/command: its process died' /run/gc.log
    [[ $(cells) == $'living1\nliving2\nliving3' ]]
    [[ $(grep -c '^removed eth0 of container killed[0-9]* from network dbnet: its network namespace has ended$' /run/gc.log) == 20 ]]
    machine bash -c '[[ ! -e /run/netns/command ]]'
    [[ $(find /var/lib/cni/networks/dbnet -name '10.*' | wc -l) == 3 ]]
    diff "$node/rules" <(machine nft list ruleset)
    [[ $(machine systemctl show --property Result cnibox-gc.service) == Result=success ]]
    machine systemctl disable --now cnibox-gc.timer
    for number in {1..3}; do
        machine "$plugins/cnibox" check dbnet "living$number" --container-id "living$number"
        machine "$plugins/cnibox" del dbnet "living$number" --container-id "living$number" --delete
    done
    rm /run/cnibox/confirm
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
    for unit in cnibox-dhcp.socket cnibox-dhcp.service cnibox-gc.timer cnibox-reconcile.service; do
        not machine systemctl is-active "$unit"
        not machine systemctl is-enabled "$unit"
    done
    machine systemctl enable --now cnibox-dhcp.socket cnibox-gc.timer cnibox-reconcile.service
    script postinst configure ''
    [[ $(ls /var/lib/systemd/deb-systemd-helper-enabled) == *cnibox-dhcp.socket*cnibox-gc.timer* ]]
    machine systemctl start cnibox-dhcp.service cnibox-netns@web
    machine bash -c '[[ -e /run/netns/web ]]'
    # An upgrade stops nothing, and the daemon is that of the new package.
    script prerm upgrade 1
    machine systemctl is-active cnibox-netns@web cnibox-dhcp.service
    script postinst configure 0.1.0
    machine systemctl is-active cnibox-netns@web cnibox-dhcp.service cnibox-gc.timer
    script prerm remove
    for unit in cnibox-dhcp.socket cnibox-dhcp.service cnibox-gc.timer cnibox-reconcile.service cnibox-netns@web; do not machine systemctl is-active "$unit"; done
    machine bash -c '[[ ! -e /run/netns/web ]]'
    eventually nothing_is_left
    rm /usr/lib/systemd/system/cnibox-*
    script postrm remove
    script postrm purge
    not grep . <<<"$(find "$units" /var/lib/systemd -name 'cnibox-*')"
}
