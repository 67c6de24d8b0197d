# Times a storm of pods: containerd starts and removes many sandboxes at once by its CRI, each with a published port, with the Go
# plugins and with ours in turn (tests/clients/run --measure ROUNDS). A part of tests/clients/containerd.sh.

# Pods, and how many of them at once.
readonly storms=(40:8 120:32)
# Where other programs of this host hardly have a port.
readonly first_port=20000

measure() {
    local storm round plugins_of
    cat >"$config/10-pods.conflist" <<-JSON
	{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	    {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
	     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	    {"type": "portmap", "capabilities": {"portMappings": true}}
	]}
	JSON
    eventually cri ready
    # The first pods read the image.
    cri storm 8 8 "$first_port" >/dev/null
    for ((round = 0; round < ROUNDS; round++)); do
        for storm in "${storms[@]}"; do
            for plugins_of in go ours; do
                "install_$plugins_of"
                cri storm "${storm%:*}" "${storm#*:}" "$first_port" >>"$node/$storm-$plugins_of"
            done
            nothing_is_left
        done
    done
    echo "| medians of $ROUNDS, in seconds | Go plugins | cnibox | ratio |"
    echo "|---|---:|---:|---:|"
    for storm in "${storms[@]}"; do rows "$storm"; done
}

# rows PODS:AT_ONCE
rows() {
    local column name=(started 'the slowest pod' removed 'the slowest pod')
    for column in 1 2 3 4; do
        awk -v name="${1%:*} pods, ${1#*:} at once: ${name[column - 1]}" -v theirs="$(median "$1-go" "$column")" \
            -v ours="$(median "$1-ours" "$column")" \
            'BEGIN { printf "| %s | %.1f | %.1f | %.2f |\n", name, theirs, ours, ours / theirs }'
    done
}

# median FILE COLUMN
median() {
    awk -v column="$2" '{ print $column }' "$node/$1" | sort -n |
        awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}
