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

# A host has no other files of the project.
test_no_document_in_a_package_links_to_a_file_that_is_not_in_it() {
    local documents
    mkdir "$node/"{deb,archive,bundle}
    dpkg-deb --extract "$packages/cnibox_${version}_amd64.deb" "$node/deb"
    tar -C "$node/archive" -xzf "$packages/cni-plugins-linux-amd64-v$version.tgz"
    tar -C "$node/bundle" -xzf "$packages/cnibox-$version-airgap-amd64.tar.gz"
    documents=$(look links "$node/"{deb,archive,bundle})
    ((documents >= 9))
}

# There is no source of it to build.
test_the_readme_of_a_package_is_for_those_who_install_it() {
    local readme
    readme=$(tar -xOzf "$packages/cni-plugins-linux-amd64-v$version.tgz" ./README.md)
    [[ $readme == *"cnibox install --force --backup /opt/cni/bin"*"cnibox doctor"* ]]
    not grep -iE 'cargo|target/|packaging/|tests/' <<<"$readme"
    diff <(cat <<<"$readme") <(tar -xOzf "$packages/cnibox-$version-airgap-amd64.tar.gz" --wildcards '*/README.md')
    diff <(cat <<<"$readme") <(dpkg-deb --fsys-tarfile "$packages/cnibox_${version}_amd64.deb" |
        tar -xO ./usr/share/doc/cnibox/README.md.gz | gzip -dc)
}

test_a_build_with_placeholders_says_so_in_one_line() {
    local said
    said=$(packaging/build --executable "x86_64=$executable" --only executable --to "$node/packages" 2>&1 >/dev/null)
    [[ $said == "packaging/build: warning: placeholders in packaging/manifest.toml: maintainer, homepage" ]]
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
