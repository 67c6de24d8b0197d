//! The identity of a DHCPv6 client: a DUID-UUID (RFC 6355) and an IAID.
//!
//! To the server each container is a separate host, so each has its own DUID. machine-id(5) forbids to send the machine id to
//! a network, so the UUID is a part of a hash.

use hmac_sha512::Hash;

use crate::dhcp::lease::Key;

/// The type of a DUID-UUID.
const UUID: [u8; 2] = [0, 4];

/// The DUID and the IAID of a lease. They are the same after each restart, and differ from machine to machine.
pub fn of(machine_id: &[u8], key: &Key) -> (Vec<u8>, u32) {
    let hash = Hash::hash([machine_id, key.to_string().as_bytes()].concat());
    let (uuid, rest) = hash.split_at(16);
    let mut duid = UUID.to_vec();
    duid.extend(uuid);
    // Version 8 and the variant of RFC 9562.
    duid[8] = duid[8] & 0x0f | 0x80;
    duid[10] = duid[10] & 0x3f | 0x80;
    (duid, u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Attachment, ContainerId, IfName, NetworkName};

    #[test]
    fn each_interface_has_its_own_constant_duid() {
        let key = |ifname: &str| Key {
            network: NetworkName::new("mynet").unwrap(),
            at: Attachment {
                container_id: ContainerId::new("abc").unwrap(),
                ifname: IfName::new(ifname).unwrap(),
            },
        };
        let (duid, iaid) = of(&[7; 16], &key("eth0"));
        assert_eq!((&duid[..2], duid.len()), (&[0, 4][..], 18));
        assert_eq!((duid[8] >> 4, duid[10] >> 6), (8, 2));
        assert!(!duid.windows(4).any(|part| part == [7; 4]), "the machine id is not shown");
        assert_eq!(of(&[7; 16], &key("eth0")), (duid.clone(), iaid));
        for (other, _) in [of(&[7; 16], &key("eth1")), of(&[8; 16], &key("eth0"))] {
            assert_ne!(other, duid);
        }
    }
}
