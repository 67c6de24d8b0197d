//! Sets, maps, verdict maps, and their elements.

use nix::libc::{self, c_int};

use super::comment::Comment;
use super::consts::{
    NFTA_DATA_VALUE, NFTA_LIST_ELEM, NFTA_SET_DATA_LEN, NFTA_SET_DATA_TYPE, NFTA_SET_ELEM_DATA,
    NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_USERDATA, NFTA_SET_FLAGS, NFTA_SET_KEY_LEN, NFTA_SET_KEY_TYPE,
    NFTA_SET_NAME, NFTA_SET_USERDATA, NFTNL_UDATA_SET_DATABYTEORDER, NFTNL_UDATA_SET_KEYBYTEORDER,
};
use super::expr::Verdict;
use super::value::{self, Type};
use super::wire::{attribute, be32, be32_of, data, data_of, set_elements};
use crate::netlink::{Attrs, text};

/// A set or map to be added. Both are hash tables: a lookup takes constant time. Several types are a concatenation:
/// `inet_proto . inet_service`.
#[derive(Clone, Debug)]
pub struct NewSet {
    pub name: String,
    key: Vec<Type>,
    data: DataType,
}

#[derive(Clone, Debug)]
enum DataType {
    None,
    Value(Vec<Type>),
    Verdict,
}

/// A set or map that the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    /// NFT_SET_*
    pub(super) flags: c_int,
    /// The type numbers of keys and of data, which nft and other programs store for their own use.
    pub(super) types: [c_int; 2],
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// In the format of `pack`.
    pub key: Vec<u8>,
    /// The data of the key in a map; `None` in a set.
    pub data: Option<Datum>,
    pub comment: Option<Comment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// In the format of `pack`.
    Value(Vec<u8>),
    Verdict(Verdict),
}

impl NewSet {
    /// `set { type ifname; }`
    pub fn set(name: impl Into<String>, key: impl Into<Vec<Type>>) -> Self {
        Self { name: name.into(), key: key.into(), data: DataType::None }
    }

    /// `map { type inet_proto . inet_service : ipv4_addr . inet_service; }`
    pub fn map(
        name: impl Into<String>,
        key: impl Into<Vec<Type>>,
        data: impl Into<Vec<Type>>,
    ) -> Self {
        Self { data: DataType::Value(data.into()), ..Self::set(name, key) }
    }

    /// `map { type ipv4_addr : verdict; }`
    pub fn verdict_map(name: impl Into<String>, key: impl Into<Vec<Type>>) -> Self {
        Self { data: DataType::Verdict, ..Self::set(name, key) }
    }

    pub(super) fn write(&self, attrs: &mut Attrs) {
        let is_map = !matches!(self.data, DataType::None);
        be32(attrs, NFTA_SET_FLAGS, if is_map { libc::NFT_SET_MAP } else { 0 });
        write_type(attrs, &self.key, NFTA_SET_KEY_TYPE, NFTA_SET_KEY_LEN);
        // The byte orders of keys and of data. Without them nft shows numbers reversed, and names empty.
        let mut user_data = Type::byte_order(&self.key, NFTNL_UDATA_SET_KEYBYTEORDER);
        match &self.data {
            DataType::None => {}
            DataType::Value(types) => {
                write_type(attrs, types, NFTA_SET_DATA_TYPE, NFTA_SET_DATA_LEN);
                user_data.extend(Type::byte_order(types, NFTNL_UDATA_SET_DATABYTEORDER));
            }
            DataType::Verdict => {
                be32(attrs, NFTA_SET_DATA_TYPE, libc::NFT_DATA_VERDICT.cast_signed());
            }
        }
        if !user_data.is_empty() {
            attrs.bytes(NFTA_SET_USERDATA, &user_data);
        }
    }
}

fn write_type(attrs: &mut Attrs, types: &[Type], kind: u16, length: u16) {
    let (number, bytes) = Type::concatenated(types);
    be32(attrs, kind, number);
    be32(attrs, length, c_int::try_from(bytes).unwrap_or(c_int::MAX));
}

impl Set {
    /// Whether the elements have data.
    pub fn is_map(&self) -> bool {
        self.flags & libc::NFT_SET_MAP != 0
    }

    /// Whether the elements are the ends of intervals.
    pub fn has_intervals(&self) -> bool {
        self.flags & libc::NFT_SET_INTERVAL != 0
    }

    /// Whether the keys are concatenations.
    pub fn has_parts(&self) -> bool {
        // Each part has 6 bits of the type.
        self.types[0] >= 1 << 6
    }

    /// Reads a set from the attributes of a message; `None` if the message is malformed.
    pub(super) fn read(list: &[u8]) -> Option<Self> {
        // The kernel sends no flags if there are none.
        let flags = attribute(list, NFTA_SET_FLAGS).and_then(be32_of).unwrap_or_default();
        Some(Self {
            name: text(attribute(list, NFTA_SET_NAME)?).into_owned(),
            flags,
            types: [NFTA_SET_KEY_TYPE, NFTA_SET_DATA_TYPE]
                .map(|kind| attribute(list, kind).and_then(be32_of).unwrap_or_default()),
        })
    }

    /// An element of the set in the words of nft: `tcp . 8080 comment "net c1 eth0" : 10.1.0.5 . 80`
    pub fn text_of(&self, element: &Element) -> String {
        let [key, data] = self.types;
        let mut text = value::text(key, &element.key);
        if let Some(comment) = &element.comment {
            text.push_str(&format!(" comment \"{}\"", &**comment));
        }
        match &element.data {
            None => {}
            Some(Datum::Value(bytes)) => text.push_str(&format!(" : {}", value::text(data, bytes))),
            Some(Datum::Verdict(verdict)) => text.push_str(&format!(" : {verdict}")),
        }
        text
    }
}

impl Element {
    pub(super) fn write(&self, attrs: &mut Attrs) {
        attrs.nested(NFTA_LIST_ELEM, |attrs| {
            data(attrs, NFTA_SET_ELEM_KEY, &self.key);
            match &self.data {
                None => {}
                Some(Datum::Value(value)) => data(attrs, NFTA_SET_ELEM_DATA, value),
                Some(Datum::Verdict(verdict)) => {
                    attrs.nested(NFTA_SET_ELEM_DATA, |attrs| verdict.write(attrs));
                }
            }
            Comment::write(self.comment.as_ref(), attrs, NFTA_SET_ELEM_USERDATA);
        });
    }

    /// Writes an element with its key only, to look up or delete it.
    pub(super) fn write_key(key: &[u8], attrs: &mut Attrs) {
        attrs.nested(NFTA_LIST_ELEM, |attrs| data(attrs, NFTA_SET_ELEM_KEY, key));
    }

    /// Reads the elements in the attributes of a message.
    pub(super) fn read_all(list: &[u8]) -> Vec<Self> {
        set_elements(list).filter_map(Self::read).collect()
    }

    fn read(element: &[u8]) -> Option<Self> {
        Some(Self {
            key: attribute(element, NFTA_SET_ELEM_KEY).and_then(data_of)?,
            data: attribute(element, NFTA_SET_ELEM_DATA).and_then(Datum::read),
            comment: attribute(element, NFTA_SET_ELEM_USERDATA).and_then(Comment::read),
        })
    }
}

impl Datum {
    pub(super) fn read(datum: &[u8]) -> Option<Self> {
        match attribute(datum, NFTA_DATA_VALUE) {
            Some(value) => Some(Self::Value(value.to_vec())),
            None => Verdict::read(datum).map(Self::Verdict),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::nft::consts::{NFTA_SET_ELEM_LIST_ELEMENTS, TYPE_IFNAME};
    use crate::netlink::nft::value::{Transport, Value, pack};
    use crate::netlink::rows;

    fn element() -> Element {
        Element {
            key: pack(&[Value::Transport(Transport::Tcp), Value::Port(8080)]),
            data: Some(Datum::Value(pack(&[
                Value::Address([10, 1, 0, 5].into()),
                Value::Port(80),
            ]))),
            comment: Some(Comment::new("own").unwrap()),
        }
    }

    /// The bytes that nft 1.0.6 sends for `tcp . 8080 comment "own" : 10.1.0.5 . 80`.
    #[test]
    fn an_element_of_a_map() {
        let mut attrs = Attrs::default();
        element().write(&mut attrs);
        assert_eq!(
            rows(attrs.as_slice()),
            "30000180 10000180 0c000100 06000000 1f900000 \
             10000280 0c000100 0a010005 00500000 \
             0a000600 00046f77 6e000000"
        );
    }

    #[test]
    fn a_written_set_is_read() {
        let jump = Some(Datum::Verdict(Verdict::Jump("net1".into())));
        let bare = Element { data: None, comment: None, ..element() };
        let all = [element(), Element { data: jump, ..element() }, bare];
        let mut attrs = Attrs::default();
        attrs.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |attrs| {
            all.iter().for_each(|element| element.write(attrs));
        });
        let bytes = attrs.as_slice();
        assert_eq!(Element::read_all(bytes), all);
        // Wrong bytes and short messages cause no panic.
        for at in 0..bytes.len() {
            assert!(Element::read_all(&bytes[..at]).len() <= all.len());
            for wrong in [0, 1, 4, 0x7f, 0xff] {
                let mut bytes = bytes.to_vec();
                bytes[at] = wrong;
                Element::read_all(&bytes);
            }
        }
    }

    /// The bytes that nft 1.0.6 sends, without its user data.
    #[test]
    fn a_map() {
        let set = NewSet::map(
            "ports",
            [Type::InetProto, Type::InetService],
            [Type::Ipv4Addr, Type::InetService],
        );
        let mut attrs = Attrs::default();
        set.write(&mut attrs);
        assert_eq!(
            rows(attrs.as_slice()),
            "08000300 00000008 08000400 0000030d 08000500 00000008 08000600 000001cd 08000700 00000008"
        );
    }

    #[test]
    fn sets_are_read() {
        let mut attrs = Attrs::default();
        attrs.string(NFTA_SET_NAME, "links");
        NewSet::verdict_map("links", [Type::IfName]).write(&mut attrs);
        let expected = Set {
            name: "links".into(),
            flags: libc::NFT_SET_MAP,
            types: [TYPE_IFNAME, libc::NFT_DATA_VERDICT.cast_signed()],
        };
        assert_eq!(Set::read(attrs.as_slice()), Some(expected));
        assert_eq!(Set::read(&attrs.as_slice()[..5]), None);
    }
}
