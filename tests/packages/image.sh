# The image, and the DaemonSet that runs it.

readonly archive=$packages/cnibox-$version-image.tar
readonly target=$node/target

podman_here() {
    configure_podman ''
    mkdir -p "$target"
}

# A node's directory with a plugin of another project in it.
foreign_plugin() {
    printf '#!/bin/sh\necho foreign\n' >"$target/$1"
    chmod 755 "$target/$1"
}

all_are_ours() {
    local name
    for name in $(plugins); do cmp "$target/$name" "$executable" || return 1; done
}

test_the_image_is_a_valid_layout_of_three_architectures() {
    [[ $(look layout "$archive") == $'linux/amd64\nlinux/arm64\nlinux/arm/v7' ]]
}

test_the_daemonset_runs_what_the_image_has_with_options_that_exist() {
    local command=() word
    read -ra command <<<"$(look daemonset packaging/kubernetes/daemonset.yaml "$version" "$archive")"
    [[ ${command[0]} == /cnibox && ${command[1]} == install ]]
    for word in "${command[@]:2}"; do
        [[ $("$executable" install --help) == *" $word "* ]]
    done
    "$executable" install --dry-run --force --backup "$target"
}

# As the DaemonSet with the patch runs it, on a node of the tests.
test_the_patch_of_the_daemonset_places_the_timer_of_the_node() {
    local args=() units=$node/units
    read -ra args <<<"$(look patch packaging/kubernetes/gc-timer.yaml packaging/kubernetes/daemonset.yaml)"
    podman_here
    mkdir "$units"
    podman load --quiet --input "$archive"
    podman run --detach --name install --network none --read-only --cap-drop all --security-opt no-new-privileges \
        --volume "$target:/host/opt/cni/bin" --volume "$units:/host/etc/systemd/system" "$image" "${args[@]}"
    eventually test -L "$units/timers.target.wants/cnibox-gc.timer"
    cmp packaging/systemd/cnibox-gc.service "$units/cnibox-gc.service"
    cmp packaging/systemd/cnibox-gc.timer "$units/cnibox-gc.timer"
    podman stop --time 10 install
    [[ $(podman inspect --format '{{.State.ExitCode}}' install) == 0 ]]
}

test_podman_loads_and_pulls_the_image() {
    podman_here
    podman load --quiet --input "$archive"
    [[ $(podman image inspect --format '{{.Architecture}} {{.Config.Labels}}' "$image") == amd64*"version:$version"* ]]
    podman rmi "$image"
    podman pull --quiet --arch arm --variant v7 "oci-archive:$archive:$image"
    podman pull --quiet --arch arm64 "oci-archive:$archive:$image"
}

test_the_image_installs_the_plugins_keeps_what_it_replaces_and_ends_with_sigterm() {
    podman_here
    foreign_plugin bridge
    foreign_plugin calico
    podman load --quiet --input "$archive"
    podman run --detach --name install --network none --read-only --cap-drop all --security-opt no-new-privileges \
        --volume "$target:/host/opt/cni/bin" "$image"
    eventually all_are_ours
    [[ $("$target/calico") == foreign ]]
    [[ $(CNI_COMMAND=VERSION "$target/bridge" </dev/null) == *supportedVersions* ]]
    [[ $(podman inspect --format '{{.State.Status}}' install) == running ]]
    podman stop --time 10 install
    [[ $(podman inspect --format '{{.State.ExitCode}}' install) == 0 ]]
    # A pod that starts again finds its own files.
    podman start install
    eventually all_are_ours
    podman stop --time 10 install
    "$target/cnibox" uninstall "$target"
    [[ $("$target/bridge") == foreign && $("$target/calico") == foreign && ! -e $target/portmap ]]
}
