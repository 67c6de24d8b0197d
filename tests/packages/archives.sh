# The archives, their sums, and the bill of materials.

test_two_builds_in_two_directories_have_the_same_bytes() {
    (($(find "$packages" -type f | wc -l) > 20))
    diff -r "$packages" "$again"
    not grep -raF "$PWD" "$packages"
}

test_every_package_is_in_the_sums() {
    cd "$packages"
    sha256sum --strict --quiet -c SHA256SUMS
    diff <(find . -type f -printf '%P\n' | grep -vE 'SHA256SUMS|[.]sha(256|512)$' | LC_ALL=C sort) <(cut -c 67- SHA256SUMS)
    sha256sum --strict --quiet -c ./*.tgz.sha256
    sha512sum --strict --quiet -c ./*.tgz.sha512
    cmp "cnibox-$version-linux-amd64" "$executable"
}

test_the_drop_in_has_the_shape_of_the_go_archive() {
    local archive=$packages/cni-plugins-linux-amd64-v$version.tgz plugin
    # The members of a release of the Go plugins, and of cnibox.
    [[ $(tar -tzf "$archive" | sort) == "$({ echo && plugins && printf '%s\n' LICENSE README.md cnibox; } | sed 's|^|./|' | sort)" ]]
    not grep -vE '^(d|-)rw.r-.r-. root/root ' <<<"$(tar -tvzf "$archive")"
    [[ $(tar --numeric-owner -tvzf "$archive" | awk '{ print $2 }' | sort -u) == 0/0 ]]
    # As the recipes extract it: one member by its name, with GNU's tar and with busybox.
    mkdir "$node/"{one,all,busybox}
    tar -C "$node/one" -xzf "$archive" ./portmap
    busybox tar -C "$node/busybox" -xzf "$archive" ./host-local
    tar -C "$node/all" -xzf "$archive"
    for plugin in "$node/one/portmap" "$node/busybox/host-local" "$node"/all/{bridge,loopback}; do
        cmp "$plugin" "$executable"
        [[ $(CNI_COMMAND=VERSION "$plugin" </dev/null) == *supportedVersions* ]]
    done
    # As kind removes the others.
    find "$node/all" -type f -not \( -iname host-local -o -iname ptp \) -delete
    [[ $(CNI_COMMAND=VERSION "$node/all/ptp" </dev/null) == *supportedVersions* ]]
    [[ $(tar -xOzf "$archive" ./LICENSE) == *"Apache License"*"Rich Felker"* ]]
}

test_the_bill_of_materials_is_complete() {
    local arch
    for arch in amd64 arm64 arm; do
        look bill "$packages/cnibox-$version-linux-$arch"
    done
}

test_the_licences_of_all_crates_are_there() {
    local text=$packages/cnibox-$version-linux-amd64.third-party.txt crate
    for crate in $(look crates "$packages/cnibox-$version-linux-amd64.cdx.json"); do
        grep -qE "(^|, )$crate( |,|$)" <<<"$(sed -nE '/^-{72}$/,/^-{72}$/p' "$text")"
    done
}

test_a_wrong_executable_is_refused() {
    local said
    said=$(not packaging/build --executable "aarch64=$executable" --only executable --to "$node/packages" 2>&1)
    [[ $said == *"cannot package $executable: it is no executable for aarch64"* ]]
    said=$(not packaging/build --executable "x86_64=/bin/busybox" --only executable --to "$node/packages" 2>&1)
    [[ $said == *"cannot package /bin/busybox: it is not of version "*"cnibox.$version"* ]]
    said=$(not packaging/build --only rpm 2>&1)
    [[ $said == *"cannot make rpm: the kinds are "* ]]
    [[ ! -e $node/packages ]]
}
