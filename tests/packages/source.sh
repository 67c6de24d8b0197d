# The sources with their crates, and the recipes of distributions. The tools of Alpine, Buildroot and Yocto are not here: of
# their recipes it is tested that they can be read, and that the commands in them install all files.

sources=$node/cnibox-$version
recipes=$node/cnibox-$version-recipes

unpack() {
    tar -C "$node" -xf "$packages/cnibox-$version.tar.xz"
    tar -C "$node" -xf "$packages/cnibox-$version-recipes.tar.gz"
}

# The executable where a recipe expects the one that it has built.
pretend_to_build() {
    install -D "$executable" "$sources/target/$1release/cnibox"
}

has_all_plugins() {
    local name
    for name in $(plugins) cnibox; do cmp "$1/$name" "$executable"; done
}

test_the_sources_compile_offline_with_nothing_else() {
    unpack
    cd "$sources"
    # This namespace has no network, and this directory no crates.
    CARGO_HOME=$node/cargo cargo check --quiet --frozen --no-default-features --features bridge
    CARGO_HOME=$node/cargo cargo metadata --format-version 1 --frozen >/dev/null
}

test_no_document_of_the_sources_links_to_a_file_that_is_not_there() {
    unpack
    rm -r "$sources/vendor"
    [[ $(look links "$sources") -gt 20 ]]
}

test_the_recipe_of_alpine_is_a_script_that_installs_all() {
    unpack
    pretend_to_build ''
    shellcheck --shell=sh --exclude SC2034,SC2154,SC3043,SC2148 "$recipes/alpine/APKBUILD"
    busybox sh -n "$recipes/alpine/APKBUILD"
    cd "$sources"
    # shellcheck disable=SC2016
    env -i PATH="$PATH" pkgdir="$node/alpine" busybox sh -euc '. "$1"; package' sh "$recipes/alpine/APKBUILD"
    has_all_plugins "$node/alpine/usr/libexec/cni"
    cmp "$node/alpine/usr/libexec/netavark/cnibox" "$executable"
    "$executable" man --to "$node/pages"
    diff -r "$node/pages" "$node/alpine/usr/share/man/man8"
    [[ $(look links "$node/alpine/usr/share/doc") == 1 ]]
    not grep -i cargo "$node/alpine/usr/share/doc/cnibox/README.md"
    grep -q /usr/libexec/cni/dhcp "$node/alpine/etc/init.d/cnibox-dhcp"
    grep -q :/usr/libexec/cni$ "$node/alpine/usr/libexec/cnibox/gc-loop"
    [[ -x $node/alpine/etc/init.d/cnibox-gc ]]
    grep -q /usr/libexec/cni/cnibox "$node/alpine/etc/init.d/cnibox-reconcile"
    grep -q "$(sha512sum <"$packages/cnibox-$version.tar.xz" | cut -d ' ' -f 1)  cnibox-$version.tar.xz" "$recipes/alpine/APKBUILD"
}

# make reads it with the two functions of Buildroot that it calls, and prints or runs its commands.
test_the_makefile_of_buildroot_installs_all() {
    unpack
    pretend_to_build triple/
    cat >"$node/Makefile" <<-'MAKE'
	generic-package =
	INSTALL = install
	RUSTC_TARGET_NAME = triple
	include cnibox.mk
	build: ; $(CNIBOX_BUILD_CMDS)
	target: ; $(CNIBOX_INSTALL_TARGET_CMDS)
	sysv: ; $(CNIBOX_INSTALL_INIT_SYSV)
	openrc: ; $(CNIBOX_INSTALL_INIT_OPENRC)
	systemd: ; $(CNIBOX_INSTALL_INIT_SYSTEMD)
	MAKE
    sed -i "s|[$](@D)|$sources|" "$recipes/buildroot/cnibox.mk"
    local make=(make -C "$recipes/buildroot" -f "$node/Makefile" TARGET_DIR="$node/buildroot")
    [[ $("${make[@]}" -n build) == *"cargo build --release --frozen --target triple --no-default-features --features "*plugins* ]]
    "${make[@]}" target sysv openrc systemd
    has_all_plugins "$node/buildroot/opt/cni/bin"
    cmp "$node/buildroot/usr/libexec/netavark/cnibox" "$executable"
    # The timer and the watcher are off: rcS does not call files of these names.
    [[ -x $node/buildroot/etc/init.d/cnibox-reconcile ]]
    [[ -x $node/buildroot/etc/init.d/cnibox-gc && -x $node/buildroot/usr/libexec/cnibox/gc-loop ]]
    [[ -e $node/buildroot/etc/init.d/S50cnibox-dhcp && -e $node/buildroot/usr/lib/systemd/system/cnibox-netns@.service ]]
    cd "$packages"
    sed -n 's/^sha256  \(.*\.tar\.xz\)$/\1/p' "$recipes/buildroot/cnibox.hash" | sha256sum --strict -c
    grep -q "^sha256  $(sha256sum <"$sources/LICENSE" | cut -d ' ' -f 1)  LICENSE$" "$recipes/buildroot/cnibox.hash"
}

test_the_recipe_of_yocto_can_be_read_and_its_task_installs_all() {
    local task=$node/task
    unpack
    pretend_to_build ''
    look recipe "$recipes/yocto/cnibox_$version.bb" >"$task"
    grep -q "$(md5sum <"$sources/LICENSE" | cut -d ' ' -f 1)" "$recipes/yocto/cnibox_$version.bb"
    env -i PATH="$PATH" B="$sources" S="$sources" D="$node/yocto" CARGO_TARGET_SUBDIR=release libexecdir=/usr/libexec \
        bindir=/usr/bin systemd_system_unitdir=/lib/systemd/system sh -eu "$task"
    has_all_plugins "$node/yocto/opt/cni/bin"
    cmp "$node/yocto/usr/libexec/netavark/cnibox" "$executable"
    [[ $(readlink "$node/yocto/usr/bin/cnibox") == ../libexec/cni/cnibox ]]
}

test_the_expression_of_nix_can_be_read() {
    unpack
    nix-instantiate --parse "$recipes/nix/default.nix" | grep -q 'cargoVendorDir = "vendor"'
}

test_initramfs_tools_and_cpio_put_all_plugins_into_an_initramfs() {
    local name
    unpack
    shellcheck --exclude SC1091 "$recipes/initramfs/initramfs-tools/cnibox" "$recipes/initramfs/cpio-archive"
    shellcheck "$recipes/initramfs/dracut/90cnibox/module-setup.sh"
    mkdir "$node/cpio"
    "$recipes/initramfs/cpio-archive" "$executable" | gzip -dc | (cd "$node/cpio" && cpio --quiet -idm)
    has_all_plugins "$node/cpio/opt/cni/bin"
    # The two functions of initramfs-tools that it calls.
    mkdir -p "$node/tools" /opt/cni/bin "$node/initramfs/opt/cni/bin"
    cp "$executable" /opt/cni/bin/cnibox
    printf '%s\n' 'copy_exec() { cp "$1" "$DESTDIR$2"; }' 'manual_add_modules() { echo "$1" >>"$DESTDIR/modules"; }' \
        >"$node/tools/hook-functions"
    sed -i "s|/usr/share/initramfs-tools|$node/tools|" "$recipes/initramfs/initramfs-tools/cnibox"
    DESTDIR=$node/initramfs sh "$recipes/initramfs/initramfs-tools/cnibox"
    has_all_plugins "$node/initramfs/opt/cni/bin"
    grep -qx nft_masq "$node/initramfs/modules"
}
