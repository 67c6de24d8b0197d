# systemd as the first process of a machine in namespaces, in the network of the test.

# start_machine CGROUP: in this control group. systemd would change sysctls of the tests' machine, so they are read-only for it.
start_machine() {
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
    bash -euc "$script" machine "$1" &
    machine=$!
}

# machine COMMAND...: runs it there.
machine() {
    nsenter --target "$(pgrep -P "$machine")" --mount --pid --cgroup --ipc --uts "$@"
}
