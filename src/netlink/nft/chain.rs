//! Chains to be added, and chains that the kernel has.

use nix::libc::{self, c_int};

use super::comment::Comment;
use super::consts::{
    NFTA_CHAIN_HANDLE, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TYPE,
    NFTA_CHAIN_USE, NFTA_CHAIN_USERDATA, NFTA_DEVICE_NAME, NFTA_HOOK_DEV, NFTA_HOOK_DEVS,
    NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY,
};
use super::wire::{attribute, be32, be32_of, be64_of};
use crate::netlink::{Attrs, attributes, text};

/// A chain to be added.
#[derive(Clone, Copy, Debug)]
pub struct NewChain<'a> {
    pub name: &'a str,
    /// `None` for a chain that is entered by jumps only.
    pub base: Option<Base>,
    pub comment: Option<&'a Comment>,
}

/// The type, the hook, the priority and the policy of a base chain: `type nat hook postrouting priority 100; policy accept;`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    pub kind: ChainKind,
    pub hook: Hook,
    /// Of two chains at one hook, the one with the lower priority gets a packet first. The families ip, ip6 and inet have
    /// filter at 0, dstnat at -100, srcnat at 100; bridge has filter at -200, dstnat at -300.
    pub priority: i32,
    pub policy: Policy,
}

impl Base {
    /// `type filter hook HOOK priority PRIORITY; policy accept;`
    pub const fn filter(hook: Hook, priority: i32) -> Self {
        Self { kind: ChainKind::Filter, hook, priority, policy: Policy::Accept }
    }

    /// `type nat hook HOOK priority PRIORITY; policy accept;`
    pub const fn nat(hook: Hook, priority: i32) -> Self {
        Self { kind: ChainKind::Nat, hook, priority, policy: Policy::Accept }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
    Route,
}

/// Source: linux/netfilter.h, `enum nf_inet_hooks`; linux/netfilter_bridge.h has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
    /// In the family bridge this number is the hook brouting.
    Ingress = 5,
}

/// The verdict at the end of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Accept,
    Drop,
}

/// A chain that the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    pub handle: u64,
    /// The number of rules in the chain, plus the number of rules and map elements that jump or go to the chain.
    pub uses: u32,
    /// `None` for a chain that is entered by jumps only.
    pub base: Option<Base>,
    pub comment: Option<Comment>,
    /// The links of a base chain of hook ingress.
    pub links: Vec<String>,
}

impl ChainKind {
    fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Filter, Self::Nat, Self::Route].into_iter().find(|kind| kind.name() == name)
    }
}

impl Hook {
    fn of(number: c_int) -> Option<Self> {
        let all = [
            Self::Prerouting,
            Self::Input,
            Self::Forward,
            Self::Output,
            Self::Postrouting,
            Self::Ingress,
        ];
        all.into_iter().find(|hook| *hook as c_int == number)
    }
}

impl Policy {
    fn number(self) -> i32 {
        match self {
            Self::Accept => libc::NF_ACCEPT,
            Self::Drop => libc::NF_DROP,
        }
    }
}

impl NewChain<'_> {
    pub(super) fn write(&self, attrs: &mut Attrs) {
        if let Some(base) = self.base {
            attrs.nested(NFTA_CHAIN_HOOK, |hook| {
                be32(hook, NFTA_HOOK_HOOKNUM, base.hook as c_int);
                be32(hook, NFTA_HOOK_PRIORITY, base.priority);
            });
            be32(attrs, NFTA_CHAIN_POLICY, base.policy.number());
            attrs.string(NFTA_CHAIN_TYPE, base.kind.name());
        }
        Comment::write(self.comment, attrs, NFTA_CHAIN_USERDATA);
    }
}

impl Chain {
    /// Reads a chain from the attributes of a message; `None` if the message is malformed.
    pub(super) fn read(list: &[u8]) -> Option<Self> {
        let kind = attribute(list, NFTA_CHAIN_TYPE).and_then(|kind| ChainKind::of(&text(kind)));
        let base = match (kind, attribute(list, NFTA_CHAIN_HOOK)) {
            (Some(kind), Some(hook)) => Some(Base {
                kind,
                hook: Hook::of(be32_of(attribute(hook, NFTA_HOOK_HOOKNUM)?)?)?,
                priority: be32_of(attribute(hook, NFTA_HOOK_PRIORITY)?)?,
                policy: match be32_of(attribute(list, NFTA_CHAIN_POLICY)?)? {
                    libc::NF_DROP => Policy::Drop,
                    _ => Policy::Accept,
                },
            }),
            _ => None,
        };
        Some(Self {
            name: text(attribute(list, NFTA_CHAIN_NAME)?).into_owned(),
            handle: be64_of(attribute(list, NFTA_CHAIN_HANDLE)?)?,
            uses: be32_of(attribute(list, NFTA_CHAIN_USE)?)?.cast_unsigned(),
            base,
            comment: attribute(list, NFTA_CHAIN_USERDATA).and_then(Comment::read),
            links: attribute(list, NFTA_CHAIN_HOOK).map(links).unwrap_or_default(),
        })
    }
}

/// The links in the attributes of a hook: one, or a list.
fn links(hook: &[u8]) -> Vec<String> {
    let listed = attribute(hook, NFTA_HOOK_DEVS).unwrap_or_default();
    let listed = attributes(listed).filter(|(kind, _)| *kind == NFTA_DEVICE_NAME);
    let all = attribute(hook, NFTA_HOOK_DEV).into_iter().chain(listed.map(|(_, name)| name));
    let mut names: Vec<String> = all.map(|name| text(name).into_owned()).collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(chain: &NewChain<'_>) -> Vec<u8> {
        let mut attrs = Attrs::default();
        attrs.bytes(NFTA_CHAIN_HANDLE, &7_u64.to_be_bytes());
        attrs.bytes(NFTA_CHAIN_USE, &3_u32.to_be_bytes());
        chain.write(&mut attrs);
        attrs.string(NFTA_CHAIN_NAME, chain.name);
        attrs.as_slice().to_vec()
    }

    #[test]
    fn a_written_chain_is_read() {
        let comment = Comment::new("why").unwrap();
        let base = Base {
            kind: ChainKind::Nat,
            hook: Hook::Postrouting,
            priority: -100,
            policy: Policy::Drop,
        };
        for (base, comment) in [(Some(base), None), (None, Some(&comment))] {
            let bytes = message(&NewChain { name: "postrouting", base, comment });
            let comment = comment.cloned();
            let (name, links) = ("postrouting".into(), Vec::new());
            let expected = Chain { name, handle: 7, uses: 3, base, comment, links };
            assert_eq!(Chain::read(&bytes), Some(expected));
            // The name comes last, so a shorter message has no name.
            for end in 0..bytes.len() - 1 {
                assert_eq!(Chain::read(&bytes[..end]), None, "{end}");
            }
        }
    }
}
