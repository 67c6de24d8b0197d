# The bundle for hosts offline, on a host that has busybox and nothing else. tests/vm/bundle.sh boots such a host.

readonly host=/run/host

# A root directory with busybox and the bundle in it.
make_host() {
    mkdir -p "$host"/{bin,dev,etc,media,opt,proc,run,sys,tmp,var}
    cp /bin/busybox "$host/bin"
    chroot "$host" /bin/busybox --install -s /bin
    mount -t proc proc "$host/proc"
    cp "$packages/cnibox-$version-airgap-amd64.tar.gz" "$host/media"
    on_host 'cd /media; tar -xzf cnibox-*-airgap-amd64.tar.gz'
    bundle=/media/cnibox-$version-airgap-amd64
}

# on_host SCRIPT
on_host() {
    env -i PATH=/bin /usr/sbin/chroot "$host" /bin/sh -euc "$1"
}

test_the_bundle_verifies_and_installs_with_busybox_alone() {
    local name
    make_host
    on_host "$bundle/install.sh"
    cmp "$host/opt/cni/bin/cnibox" "$executable"
    for name in $(plugins); do
        cmp "$host/opt/cni/bin/$name" "$executable"
        [[ $(on_host "CNI_COMMAND=VERSION /opt/cni/bin/$name </dev/null") == *supportedVersions* ]]
    done
    # Again, into another directory, with an option of `cnibox install`.
    on_host "$bundle/install.sh -s /opt/other"
    [[ -L $host/opt/other/bridge ]]
    on_host "$bundle/install.sh --netavark /usr/local/libexec/netavark"
    [[ $(ls -A "$host/usr/local/libexec/netavark") == cnibox ]]
    [[ $(on_host '/usr/local/libexec/netavark/cnibox info') == *'"api_version":"1.0.0"'* ]]
}

test_a_bundle_with_a_changed_or_missing_file_installs_nothing() {
    local name
    make_host
    for name in cnibox image.tar netns; do
        on_host "cp -a $bundle /media/broken; echo x >>/media/broken/$name"
        not on_host /media/broken/install.sh
        on_host 'rm -r /media/broken'
    done
    on_host "cp -a $bundle /media/broken; rm /media/broken/LICENSE"
    not on_host /media/broken/install.sh
    [[ ! -e $host/opt/cni ]]
}

test_every_file_of_the_bundle_is_in_its_sums() {
    make_host
    on_host "cd $bundle; find . -type f | sed 's|^[.]/||' | sort" | grep -vxE 'SHA256SUMS|install.sh' >"$node/files"
    diff "$node/files" <(cut -c 67- "$host/$bundle/SHA256SUMS")
    shellcheck "$host/$bundle/install.sh"
}
