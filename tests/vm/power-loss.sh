# The power fails, and the host goes on. Each of these is a boot of its own, in this order, with the same disk as /var,
# and at its end the power is cut. The disk is written to all the time, so that any mixture of old and new is on it.

size=12

# network NAME [MORE]: a network with a range of $size addresses; MORE is for its IPAM.
network() {
    echo '{"cniVersion": "1.1.0", "name": "'"$1"'", "type": "bridge", "bridge": "'"$1"'", "isGateway": true,
        "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24",
            "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.'$((9 + size))'"'"${2-}"'}}'
}

# reserved NETWORK: how many addresses are, by the files.
reserved() {
    ls "/var/lib/cni/networks/$1" | grep -c '^10\.' || true
}

# fill NETWORK PREFIX: containers take the whole range, and not one more.
fill() {
    local i names=
    for i in $(seq $size); do
        container "$2$i"
        add bridge "$2$i" "$(network "$1")"
        names="$names $2$i"
    done
    same $size "$(for name in $names; do address_of "$name" eth0; done | sort -u | wc -l)"
    same $size "$(reserved "$1")"
    container "$2-late"
    expect_fail 999 ADD bridge "$2-late" "$(network "$1")"
    reaches "${2}1" "$(address_of "${2}$size" eth0)"
    check bridge "${2}1" "$(network "$1")"
}

write_all_the_time() {
    echo 1 >/proc/sys/vm/dirty_writeback_centisecs
    echo 1 >/proc/sys/vm/dirty_expire_centisecs
}

# churn NETWORK: ADD and DEL without end, in the background; returns when that has gone on for a while.
churn() {
    local config
    config=$(network "$1")
    (
        set +x
        i=0
        while true; do
            i=$((i + 1))
            printf '%s' "$config" | plugin ADD host-local "churn$i" || true
            [ $i -lt 8 ] || printf '%s' "$config" | plugin DEL host-local "churn$((i - 7))"
            echo $i >"/tmp/churned-$1"
        done >/dev/null 2>&1 &
    )
    eventually grep -qE '^[0-9]{2}' "/tmp/churned-$1"
}

# Prints the files on the disk, for the log.
show() {
    find /var/lib/cni -type f -exec ls -l {} + || true
}

cut_power_fails_when_ranges_are_full() {
    fill kept k
    fill synced s
    sync
    write_all_the_time
    fill unsynced u
}

cut_reservations_of_the_last_boot_are_reclaimed() {
    show
    same $size "$(reserved synced)"
    same $size "$(reserved kept)"
    # Records of this host prove that their containers have ended. Those without a record may be of another host.
    container one two
    add bridge one "$(network kept ', "staleOnBoot": "keep"')"
    same $size "$(reserved kept)"
    rm /var/lib/cni/attachments/kept+k*
    expect_fail 999 ADD bridge two "$(network kept ', "staleOnBoot": "keep"')"
    fill synced a
    fill unsynced b
    write_all_the_time
    churn churned
    churn unsettled
}

# A reservation of the last second may be in a file of which nothing else is on the disk. It counts as of this boot then, so
# what a runtime does after a boot gives it back: GC.
cut_no_half_written_file_is_in_the_way() {
    show
    gc bridge "$(network churned)"
    gc bridge "$(network unsettled)"
    fill churned a
    fill unsettled b
    fill unsynced c
    for i in $(seq $size); do del bridge "a$i" "$(network churned)"; done
    same 0 "$(reserved churned)"
    write_all_the_time
    churn churned
}

cut_nothing_is_left_after_gc() {
    local name
    show
    for name in kept synced unsynced churned unsettled; do
        gc bridge "$(network $name)"
        same 0 "$(reserved $name)"
        ip link del $name || true
    done
    fill churned a
    gc bridge "$(network churned)"
    same 0 "$(reserved churned)"
    ip link del churned
    same "lo" "$(ls /sys/class/net | grep -v '^eth' | xargs)"
}
