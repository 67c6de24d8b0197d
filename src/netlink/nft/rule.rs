//! Rules to be added, and rules that the kernel has: those of cnibox, nft and iptables.

use super::Family;
use super::comment::Comment;
use super::condition::Condition;
use super::consts::{
    NFTA_RULE_CHAIN, NFTA_RULE_COMPAT, NFTA_RULE_COMPAT_FLAGS, NFTA_RULE_COMPAT_PROTO,
    NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_USERDATA,
};
use super::expr::{Expr, Verdict};
use super::field::Field;
use super::wire::{attribute, be32, be64_of};
use crate::names;
use crate::netlink::{Attrs, text, u32_of};

/// A rule to be added.
#[derive(Clone, Debug)]
pub struct NewRule<'a> {
    pub(super) chain: &'a str,
    pub(super) position: Position,
    pub(super) exprs: Vec<Expr>,
    pub(super) comment: Option<Comment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    First,
    Last,
}

/// A rule that the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub chain: String,
    pub handle: u64,
    /// The comment of nft, or the match `comment` of iptables.
    pub comment: Option<Comment>,
    pub exprs: Vec<Expr>,
}

impl<'a> NewRule<'a> {
    /// An empty rule at the end of a chain.
    pub fn last(chain: &'a str) -> Self {
        Self { chain, position: Position::Last, exprs: Vec::new(), comment: None }
    }

    /// An empty rule at the beginning of a chain.
    pub fn first(chain: &'a str) -> Self {
        Self { position: Position::First, ..Self::last(chain) }
    }

    /// Appends expressions.
    pub fn with(mut self, exprs: impl IntoIterator<Item = Expr>) -> Self {
        self.exprs.extend(exprs);
        self
    }

    /// Appends one expression or a verdict.
    pub fn then(self, expr: impl Into<Expr>) -> Self {
        self.with([expr.into()])
    }

    /// Appends the expressions of a rule that `Rule::is` recognizes, and sets its comment.
    pub fn tagged(self, exprs: &[Expr]) -> Self {
        self.with(exprs.iter().cloned()).comment(&Comment::from_text(tag(exprs).as_bytes()))
    }

    pub fn comment(self, comment: &Comment) -> Self {
        Self { comment: Some(comment.clone()), ..self }
    }

    pub(super) fn write(&self, attrs: &mut Attrs) {
        attrs.string(NFTA_RULE_CHAIN, self.chain);
        attrs.nested(NFTA_RULE_EXPRESSIONS, |attrs| {
            self.exprs.iter().for_each(|expr| expr.write(attrs));
        });
        let protocol = |expr: &Expr| match expr {
            Expr::XtMatch(extension) => extension.protocol(),
            _ => None,
        };
        if let Some(transport) = self.exprs.iter().find_map(protocol) {
            attrs.nested(NFTA_RULE_COMPAT, |attrs| {
                be32(attrs, NFTA_RULE_COMPAT_PROTO, transport.number().into());
                be32(attrs, NFTA_RULE_COMPAT_FLAGS, 0);
            });
        }
        Comment::write(self.comment.as_ref(), attrs, NFTA_RULE_USERDATA);
    }
}

/// The comment of a rule with these expressions: a hash of their bytes.
fn tag(exprs: &[Expr]) -> String {
    let mut attrs = Attrs::default();
    exprs.iter().for_each(|expr| expr.write(&mut attrs));
    format!("cnibox {:016x}", names::hash(attrs.as_slice()))
}

impl Rule {
    /// The chain that the rule jumps or goes to; `None` if it has no verdict `jump` or `goto`.
    pub fn leads_to(&self) -> Option<&str> {
        self.exprs.iter().find_map(|expr| match expr {
            Expr::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain.as_str()),
            _ => None,
        })
    }

    /// Whether cnibox added the rule with these expressions. `nft list ruleset >f; nft -f f` keeps the comment of a rule, and rewrites its
    /// expressions. Releases up to 0.2.0 wrote no comment.
    pub fn is(&self, exprs: &[Expr]) -> bool {
        let is_tagged = |comment: &Comment| **comment == tag(exprs);
        let is_same = || Condition::split(&self.exprs) == Condition::split(exprs);
        self.exprs == exprs || self.comment.as_ref().map_or_else(is_same, is_tagged)
    }

    /// The conditions of the rule, except on ranges and sets, and except extensions of iptables.
    pub fn conditions(&self) -> Vec<Condition> {
        Condition::all_of(&self.exprs)
    }

    /// The data of the iptables match with the name `wanted`; `None` if the rule has no such match.
    pub fn xt_match(&self, wanted: &str) -> Option<&[u8]> {
        self.exprs.iter().find_map(|expr| match expr {
            Expr::XtMatch(found) if found.name == wanted => Some(found.info.as_slice()),
            _ => None,
        })
    }

    /// Whether the rule compares or changes one of these bits of the packet mark. A rule for whole marks uses the bits of its value
    /// only.
    pub fn uses_mark(&self, bits: u32) -> bool {
        let uses = |value: u32, mask: u32| {
            let of_mask = if mask == u32::MAX { 0 } else { mask };
            bits & (value | of_mask) != 0
        };
        let number = |bytes: &[u8]| u32_of(bytes).unwrap_or_default();
        let has_condition = self.conditions().iter().any(|condition| {
            condition.field == Field::Mark
                && uses(number(&condition.value), number(&condition.mask))
        });
        let changes = |pair: &[Expr]| match pair {
            [Expr::Bitwise { mask, xor, .. }, Expr::SetMark { .. }] => {
                uses(number(xor), !number(mask))
            }
            [Expr::Immediate { value, .. }, Expr::SetMark { .. }] => uses(number(value), u32::MAX),
            _ => false,
        };
        let of_iptables = |expr: &Expr| match expr {
            Expr::XtMatch(extension) | Expr::XtTarget(extension) => {
                extension.mark().is_some_and(|(value, mask)| uses(value, mask))
            }
            _ => false,
        };
        has_condition || self.exprs.windows(2).any(changes) || self.exprs.iter().any(of_iptables)
    }

    /// Reads a rule from the attributes of a message about a table of that family; `None` if the message is malformed.
    pub(super) fn read(family: Family, list: &[u8]) -> Option<Self> {
        let exprs = attribute(list, NFTA_RULE_EXPRESSIONS).unwrap_or_default();
        let mut rule = Self {
            chain: text(attribute(list, NFTA_RULE_CHAIN)?).into_owned(),
            handle: be64_of(attribute(list, NFTA_RULE_HANDLE)?)?,
            comment: attribute(list, NFTA_RULE_USERDATA).and_then(Comment::read),
            exprs: Expr::read_all(family, exprs),
        };
        if rule.comment.is_none() {
            rule.comment = rule.xt_match("comment").map(Comment::from_text);
        }
        Some(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::super::expr::{XtExtension, change_mark};
    use super::super::register::Register;
    use super::super::xt::xt_mark;
    use super::*;
    use crate::netlink::rows;

    fn message(rule: &NewRule<'_>) -> Vec<u8> {
        let mut attrs = Attrs::default();
        attrs.bytes(NFTA_RULE_HANDLE, &4_u64.to_be_bytes());
        rule.write(&mut attrs);
        attrs.as_slice().to_vec()
    }

    /// The bytes that nft 1.0.6 sends for `ip daddr != 224.0.0.0/4 masquerade comment "hello"`.
    #[test]
    fn a_rule() {
        let comment = Comment::new("hello").unwrap();
        let multicast: ipnet::IpNet = "224.0.0.0/4".parse().unwrap();
        let rule = NewRule::last("net1")
            .with(Condition::daddr(multicast).negated())
            .then(Expr::Masquerade)
            .comment(&comment);
        let mut attrs = Attrs::default();
        rule.write(&mut attrs);
        assert_eq!(
            rows(attrs.as_slice()),
            "09000200 6e657431 00000000 bc000480 34000180 0c000100 7061796c 6f616400 24000280 \
             08000100 00000001 08000200 00000001 08000300 00000010 08000400 00000004 44000180 \
             0c000100 62697477 69736500 34000280 08000100 00000001 08000200 00000001 08000300 \
             00000004 0c000480 08000100 f0000000 0c000580 08000100 00000000 2c000180 08000100 \
             636d7000 20000280 08000100 00000001 08000200 00000001 0c000380 08000100 e0000000 \
             14000180 09000100 6d617371 00000000 04000280 0c000700 00066865 6c6c6f00"
        );
    }

    #[test]
    fn a_rule_of_iptables_is_recognised() {
        let mut info = vec![0; 256];
        info[..11].copy_from_slice(b"name: \"net\"");
        let address = std::net::IpAddr::from([10, 1, 0, 5]);
        let rule = NewRule::last("POSTROUTING")
            .with(Condition::saddr(address))
            .then(Expr::XtMatch(XtExtension { name: "comment".into(), revision: 0, info }))
            .then(Expr::Counter)
            .then(Verdict::Jump("CNI-abc".into()));
        let bytes = message(&rule);
        let rule = Rule::read(Family::Ip, &bytes).unwrap();
        assert_eq!((rule.chain.as_str(), rule.handle), ("POSTROUTING", 4));
        assert_eq!(rule.comment.as_deref(), Some("name: \"net\""));
        assert_eq!(rule.leads_to(), Some("CNI-abc"));
        assert_eq!(rule.conditions(), [Condition::saddr(address)]);
        for end in 0..bytes.len() {
            Rule::read(Family::Ip, &bytes[..end]);
        }
    }

    #[test]
    fn a_rule_uses_the_bits_of_the_mark_that_it_compares_or_changes() {
        let set = |mark: u32| {
            let to = Register::FIRST;
            let value = mark.to_ne_bytes().into();
            vec![Expr::Immediate { value, to }, Expr::SetMark { from: to }]
        };
        let target = |name: &str, words: [u32; 3]| {
            let info = words.map(u32::to_ne_bytes).concat();
            vec![Expr::XtTarget(XtExtension { name: name.into(), revision: 2, info })]
        };
        let compare = |mask, value| Vec::from(Condition::mark(mask, value).into_masked());
        for (exprs, expected) in [
            (compare(0x3000, 0), true),
            (compare(u32::MAX, 0x1000), true),
            (compare(u32::MAX, 1), false),
            (compare(0x2000, 0x2000), false),
            (change_mark(!0x1000, 0).into(), true),
            (change_mark(!0x2000, 0x2000).into(), false),
            (change_mark(0, 1).into(), false),
            (set(0x1001), true),
            (set(1), false),
            (vec![xt_mark(0x1000)], true),
            (vec![xt_mark(0x4000)], false),
            (target("MARK", [0x1000, 0x1000, 0]), true),
            (target("MARK", [1, u32::MAX, 0]), false),
            (target("CONNMARK", [0, 0x1000, 0x1000]), true),
            (target("CONNMARK", [0, u32::MAX, u32::MAX]), false),
            (target("LOG", [0x1000; 3]), false),
            (vec![Verdict::Accept.into()], false),
        ] {
            let rule = Rule { chain: "c".into(), handle: 1, comment: None, exprs };
            assert_eq!(rule.uses_mark(0x1000), expected, "{rule:?}");
        }
    }

    #[test]
    fn a_rule_of_ours_is_recognized_by_its_comment() {
        let net = |net: &str| net.parse::<ipnet::IpNet>().unwrap();
        let to = |at: &str| -> Vec<Expr> {
            Condition::daddr(net(at)).into_iter().chain([Verdict::Drop.into()]).collect()
        };
        let ours = to("10.1.0.0/16");
        let read = |rule: NewRule<'_>| Rule::read(Family::Ip, &message(&rule)).unwrap();
        let tagged = read(NewRule::last("c").tagged(&ours));
        // As nft writes the prefix, for a rule of an earlier release: it loads two bytes only.
        let (register, value) = (Register::FIRST, vec![10, 1]);
        let load = Expr::Load { field: Field::IpDaddr, bytes: 2, to: register };
        let compare = Expr::Compare { register, is_equal: true, value };
        let loaded = read(NewRule::last("c").with([load, compare, Verdict::Drop.into()]));
        let rewritten = Rule { exprs: Vec::new(), ..tagged.clone() };
        for rule in [&tagged, &rewritten, &loaded, &read(NewRule::last("c").with(ours.clone()))] {
            assert!(rule.is(&ours), "{rule:?}");
        }
        let others = [to("10.1.0.0/17"), to("10.2.0.0/16"), ours[..2].to_vec(), vec![]];
        for other in &others {
            assert!(!tagged.is(other) && !loaded.is(other), "{other:?}");
        }
        let comment = Comment::new("of an administrator").unwrap();
        assert!(!read(NewRule::last("c").with(to("10.1.0.0/17")).comment(&comment)).is(&ours));
    }

    #[test]
    fn the_comment_of_nft_has_precedence() {
        let info = b"iptables\0".to_vec();
        let comment = Comment::new("nft").unwrap();
        let rule = NewRule::first("x")
            .then(Expr::XtMatch(XtExtension { name: "comment".into(), revision: 0, info }))
            .comment(&comment);
        let rule = Rule::read(Family::Ip, &message(&rule)).unwrap();
        assert_eq!(rule.comment, Some(comment));
        assert_eq!(rule.leads_to(), None);
    }
}
