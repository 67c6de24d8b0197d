#!/bin/bash
# Puts cnibox, its plugins and the networks of this host into the initramfs: `dracut --add cnibox`. For
# /usr/lib/dracut/modules.d/90cnibox.

# dracut looks for the program before it asks for anything.
check() {
    program || return 1
    return 255
}

depends() {
    return 0
}

program() {
    local directory
    for directory in /opt/cni/bin /usr/lib/cni /usr/libexec/cni; do
        [[ -x $directory/cnibox ]] && echo "$directory/cnibox" && return 0
    done
    return 1
}

installkernel() {
    hostonly='' instmods @MODULES@
}

install() {
    local program plugin
    program=$(program) || return 1
    inst_simple "$program" /opt/cni/bin/cnibox
    for plugin in $("$program" list); do
        # shellcheck disable=SC2154
        ln -sf cnibox "$initdir/opt/cni/bin/$plugin"
    done
    if [[ -d /etc/cni/net.d ]]; then
        inst_multiple -o /etc/cni/net.d/*
    fi
}
