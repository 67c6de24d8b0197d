# nix-build -E 'with import <nixpkgs> {}; pkgsStatic.callPackage ./default.nix {}'
{ lib, stdenv, rustPlatform, fetchurl }:

rustPlatform.buildRustPackage rec {
  pname = "@NAME@";
  version = "@VERSION@";

  src = fetchurl {
    url = "@HOMEPAGE@/@NAME@-${version}.tar.xz";
    sha256 = "@SHA256@";
  };

  # The archive has all crates.
  cargoVendorDir = "vendor";
  buildNoDefaultFeatures = true;
  buildFeatures = [ @NIX_FEATURES@ ];
  # The tests need namespaces, which the sandbox does not have.
  doCheck = false;

  # The executable is static, also with glibc.
  buildInputs = lib.optional stdenv.hostPlatform.isGnu stdenv.cc.libc.static;

  # The plugins are not in bin: one of them has the name of a command of iproute2.
  postInstall = ''
    mkdir -p $out/lib/cni $out/libexec/netavark
    mv $out/bin/cnibox $out/lib/cni/cnibox
    ln -s ../lib/cni/cnibox $out/bin/cnibox
    ln -s ../../lib/cni/cnibox $out/libexec/netavark/cnibox
    for link in symlinks/*; do
      ln -s cnibox $out/lib/cni/$(basename $link)
    done
    install -Dm644 packaging/systemd/* -t $out/lib/systemd/system
    substituteInPlace $out/lib/systemd/system/cnibox-dhcp.service --replace /opt/cni/bin $out/lib/cni
    substituteInPlace $out/lib/systemd/system/cnibox-gc.service --replace /opt/cni/bin $out/lib/cni
    substituteInPlace $out/lib/systemd/system/cnibox-reconcile.service --replace /opt/cni/bin $out/lib/cni
    substituteInPlace $out/lib/systemd/system/cnibox-netns@.service --replace /usr/libexec/cnibox $out/libexec/cnibox
    install -Dm755 packaging/netns $out/libexec/cnibox/netns
    substituteInPlace $out/libexec/cnibox/netns --replace /opt/cni/bin $out/bin
  '';

  meta = {
    description = "@SUMMARY@";
    homepage = "@HOMEPAGE@";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
    mainProgram = "cnibox";
  };
}
