//! The effect of a rule, in a form that does not depend on the choice of its expressions. `nft list ruleset >f; nft -f f`
//! rewrites rules: nft loads only the bytes that a prefix covers, writes a range as two comparisons, loads adjacent fields at
//! once, and can use other registers.

use std::collections::BTreeSet;

use super::Family;
use super::expr::{Expr, Lookup, Nat};
use super::field::FieldSource;
use super::register::{REGISTERS_BYTES, Register};

/// Rules with equal meanings have the same effect on every packet. Some rules with the same effect have different meanings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Meaning {
    /// The actions of the rule in their order, each with the conditions before it.
    actions: Vec<(BTreeSet<Constraint>, Action)>,
    /// The conditions after the last action.
    last: BTreeSet<Constraint>,
}

/// A condition or an action of a rule.
enum Step {
    Require(Constraint),
    Act(Action),
}

/// A condition on a packet. The order of conditions has no effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Constraint {
    Is(Bits),
    /// At least one of these bytes differs.
    IsNot(Vec<Bits>),
    AtLeast(Vec<SymbolicByte>, Vec<u8>),
    AtMost(Vec<SymbolicByte>, Vec<u8>),
    Outside(Vec<SymbolicByte>, Vec<u8>, Vec<u8>),
    In(Vec<SymbolicByte>, String),
    NotIn(Vec<SymbolicByte>, String),
    Never,
}

/// `origin & mask == value`, with a mask that is not 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bits {
    origin: Origin,
    mask: u8,
    value: u8,
}

/// An action of a rule, with the symbolic bytes that it uses.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// The verdict of a verdict map: the key, and the name of the map.
    VerdictMap(Vec<SymbolicByte>, String),
    Nat(Nat, Family, Option<Vec<SymbolicByte>>, Option<Vec<SymbolicByte>>),
    Redirect(Option<Vec<SymbolicByte>>),
    SetMark(Vec<SymbolicByte>),
    Other(Expr),
}

/// A symbolic byte of the registers: `origin & mask ^ xor`. The mask of a constant is 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SymbolicByte {
    origin: Origin,
    mask: u8,
    xor: u8,
}

/// Where a byte of the registers comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The rule did not load the byte, or an unknown expression did.
    Unknown,
    /// A byte of a header or of the kernel's metadata.
    Field(FieldSource, u8),
    /// A byte of the data of a map: the name of the map, the key, and the offset in the data.
    Map(String, Vec<SymbolicByte>, usize),
}

impl SymbolicByte {
    const UNKNOWN: Self = Self { origin: Origin::Unknown, mask: 0xff, xor: 0 };

    fn constant(value: u8) -> Self {
        Self { origin: Origin::Unknown, mask: 0, xor: value }
    }

    fn whole(origin: Origin) -> Self {
        Self { origin, mask: 0xff, xor: 0 }
    }

    fn masked(&self, mask: u8, xor: u8) -> Self {
        let (mask, xor) = (self.mask & mask, (self.xor & mask) ^ xor);
        if mask == 0 {
            Self::constant(xor)
        } else {
            Self { origin: self.origin.clone(), mask, xor }
        }
    }
}

impl Meaning {
    pub(super) fn of(exprs: &[Expr]) -> Self {
        let mut meaning = Self::default();
        for step in steps(exprs) {
            match step {
                Step::Require(condition) => drop(meaning.last.insert(condition)),
                Step::Act(action) => {
                    meaning.actions.push((std::mem::take(&mut meaning.last), action));
                }
            }
        }
        meaning
    }
}

/// The conditions and actions of a rule, in the order of its expressions.
fn steps(exprs: &[Expr]) -> Vec<Step> {
    let mut machine = SymbolicMachine {
        registers: vec![SymbolicByte::UNKNOWN; REGISTERS_BYTES],
        loaded_end: 0,
        steps: Vec::new(),
    };
    for expr in exprs {
        machine.execute(expr);
    }
    machine.steps
}

/// Executes the expressions of a rule with symbolic registers.
struct SymbolicMachine {
    registers: Vec<SymbolicByte>,
    /// The end of the bytes that were loaded last.
    loaded_end: usize,
    steps: Vec<Step>,
}

impl SymbolicMachine {
    fn execute(&mut self, expr: &Expr) {
        match expr {
            Expr::Load { field, bytes, to } => {
                self.load(field.source(), *bytes, *to);
            }
            Expr::Immediate { value, to } => {
                self.fill(*to, value.iter().copied().map(SymbolicByte::constant));
            }
            Expr::Bitwise { register, mask, xor } => {
                let at = self.registers.iter_mut().skip(register.byte());
                for (byte, (mask, xor)) in at.zip(mask.iter().zip(xor)) {
                    *byte = byte.masked(*mask, *xor);
                }
            }
            Expr::SwapBytes { register, bytes, size } if cfg!(target_endian = "little") => {
                let all = &mut self.registers[register.byte()..];
                let count = usize::from(*bytes).min(all.len());
                let numbers = all[..count].chunks_exact_mut(usize::from(*size).max(1));
                numbers.for_each(<[SymbolicByte]>::reverse);
            }
            // A counter has no effect on a packet.
            Expr::SwapBytes { .. } | Expr::Counter => {}
            Expr::Compare { register, is_equal, value } => {
                self.compare(*register, *is_equal, value);
            }
            Expr::Range { register, is_inside, first, last } => {
                let bytes = self.bytes(*register, first.len());
                if !is_inside {
                    let (first, last) = (first.clone(), last.clone());
                    return self.require(Constraint::Outside(bytes, first, last));
                }
                if first.iter().any(|byte| *byte != 0) {
                    self.require(Constraint::AtLeast(bytes.clone(), first.clone()));
                }
                if last.iter().any(|byte| *byte != 0xff) {
                    self.require(Constraint::AtMost(bytes, last.clone()));
                }
            }
            Expr::Lookup { set, key, lookup } => self.look_up(set, *key, *lookup),
            Expr::SetMark { from } => self.act(Action::SetMark(self.bytes(*from, 4))),
            Expr::Nat { nat, family, address, port } => {
                let length = if *family == Family::Ip6 { 16 } else { 4 };
                let address = address.map(|register| self.bytes(register, length));
                let port = port.map(|register| self.bytes(register, 2));
                self.act(Action::Nat(*nat, *family, address, port));
            }
            Expr::Redirect { port } => {
                self.act(Action::Redirect(port.map(|register| self.bytes(register, 2))));
            }
            Expr::Other(name) => {
                // The expression can load registers.
                if !is_without_effect(name) {
                    self.registers.fill(SymbolicByte::UNKNOWN);
                }
                self.act(Action::Other(expr.clone()));
            }
            Expr::Verdict(_)
            | Expr::SetTrace { .. }
            | Expr::LoadOriginal { .. }
            | Expr::Masquerade
            | Expr::Reject { .. }
            | Expr::XtMatch(_)
            | Expr::XtTarget(_) => self.act(Action::Other(expr.clone())),
        }
    }

    fn load(&mut self, source: FieldSource, bytes: u8, to: Register) {
        let byte = |at: u8| {
            SymbolicByte::whole(match source {
                FieldSource::Payload(header, offset) => {
                    let offset = offset.saturating_add(at.into());
                    Origin::Field(FieldSource::Payload(header, offset), 0)
                }
                other => Origin::Field(other, at),
            })
        };
        self.fill(to, (0..bytes).map(byte));
    }

    /// Loads bytes into registers. The kernel pads the last register with zeros.
    fn fill(&mut self, to: Register, bytes: impl Iterator<Item = SymbolicByte>) {
        let mut bytes: Vec<_> = bytes.collect();
        bytes.resize(bytes.len().next_multiple_of(size_of::<u32>()), SymbolicByte::constant(0));
        bytes.truncate(REGISTERS_BYTES - to.byte());
        self.loaded_end = to.byte() + bytes.len();
        self.registers[to.byte()..self.loaded_end].clone_from_slice(&bytes);
    }

    /// The bytes from a register on, at most `count`.
    fn bytes(&self, from: Register, count: usize) -> Vec<SymbolicByte> {
        self.registers.iter().skip(from.byte()).take(count).cloned().collect()
    }

    /// Adds a condition.
    fn require(&mut self, condition: Constraint) {
        self.steps.push(Step::Require(condition));
    }

    /// Adds an action.
    fn act(&mut self, action: Action) {
        self.steps.push(Step::Act(action));
    }

    fn compare(&mut self, register: Register, is_equal: bool, value: &[u8]) {
        let bytes = self.bytes(register, value.len());
        let mut all = Vec::new();
        // A comparison with bytes after the last register never matches.
        let mut is_possible = bytes.len() == value.len();
        for (SymbolicByte { origin, mask, xor }, value) in bytes.into_iter().zip(value) {
            let value = value ^ xor;
            is_possible &= value & !mask == 0;
            if mask != 0 {
                all.push(Bits { origin, mask, value });
            }
        }
        match (is_possible, is_equal) {
            (true, true) => all.into_iter().for_each(|bits| self.require(Constraint::Is(bits))),
            (true, false) => self.require(Constraint::is_not(all)),
            (false, true) => self.require(Constraint::Never),
            (false, false) => {}
        }
    }

    /// The length of the key is unknown here: it ends with the bytes that were loaded last, because every concatenation is
    /// loaded from its beginning.
    fn look_up(&mut self, set: &str, key: Register, lookup: Lookup) {
        let bytes = self.bytes(key, self.loaded_end.saturating_sub(key.byte()));
        match lookup {
            Lookup::Contains => self.require(Constraint::In(bytes, set.into())),
            Lookup::Lacks => self.require(Constraint::NotIn(bytes, set.into())),
            Lookup::Verdict => self.act(Action::VerdictMap(bytes, set.into())),
            Lookup::Load(to) => {
                self.require(Constraint::In(bytes.clone(), set.into()));
                // The length of the map's data is unknown here, so the data fills all registers from `to` on.
                let of_map = |at| SymbolicByte::whole(Origin::Map(set.into(), bytes.clone(), at));
                self.fill(to, (0..REGISTERS_BYTES - to.byte()).map(of_map));
            }
        }
    }
}

/// Whether an expression of another kind, by its name, has no effect on the packet's way, and loads no registers.
pub(super) fn is_without_effect(name: &str) -> bool {
    matches!(name, "log" | "log group" | "last" | "notrack" | "meta set" | "ct set")
}

impl Constraint {
    /// The condition that not all of these bits have their values. Of a single bit, "not 0" is the same as "1".
    fn is_not(bits: Vec<Bits>) -> Self {
        match bits.as_slice() {
            [] => Self::Never,
            [one] if one.mask.is_power_of_two() => {
                Self::Is(Bits { value: one.value ^ one.mask, ..one.clone() })
            }
            _ => Self::IsNot(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::nft::expr::{Verdict, dnat_to_map, in_range};
    use crate::netlink::nft::{Condition, CtState, Field, Transport, in_set};

    fn net(net: &str) -> ipnet::IpNet {
        net.parse().unwrap()
    }

    fn rule(conditions: impl IntoIterator<Item = Condition>) -> Vec<Expr> {
        conditions.into_iter().flatten().chain([Verdict::Drop.into()]).collect()
    }

    fn compare(register: Register, value: &[u8]) -> Expr {
        Expr::Compare { register, is_equal: true, value: value.into() }
    }

    /// Pairs of equivalent rules: one of cnibox, and one of another program.
    fn equivalent_rules() -> Vec<(Vec<Expr>, Vec<Expr>)> {
        let (first, second) = (Register::FIRST, Register::FIRST.after(4));
        let load = |field: Field, bytes, to| Expr::Load { field, bytes, to };
        let range = |from: &[u8], to: &[u8]| Expr::Range {
            register: first,
            is_inside: true,
            first: from.into(),
            last: to.into(),
        };
        let drop = Expr::from(Verdict::Drop);
        let ports = [[0, 80], [0, 90]];
        vec![
            (
                rule([Condition::daddr(net("10.1.0.0/16"))]),
                vec![load(Field::IpDaddr, 2, first), compare(first, &[10, 1]), drop.clone()],
            ),
            (
                rule([Condition::daddr(net("10.128.0.0/9"))]),
                vec![
                    load(Field::IpDaddr, 4, second),
                    Expr::Bitwise { register: second, mask: vec![255, 128, 0, 0], xor: vec![0; 4] },
                    compare(second, &[10, 128, 0, 0]),
                    Expr::Counter,
                    drop.clone(),
                ],
            ),
            (
                rule(
                    ["10.0.0.1/32", "10.0.0.2/32"]
                        .map(net)
                        .map(Condition::saddr)
                        .into_iter()
                        .take(1)
                        .chain([Condition::daddr(net("10.0.0.2/32"))]),
                ),
                vec![
                    load(Field::Payload(1, 12), 8, first),
                    compare(first, &[10, 0, 0, 1, 10, 0, 0, 2]),
                    drop,
                ],
            ),
            (
                in_range(Field::Dport, &ports[0], &ports[1]),
                vec![
                    load(Field::Dport, 2, first),
                    range(&ports[0], &[0xff, 0xff]),
                    range(&[0, 0], &ports[1]),
                ],
            ),
            (
                rule([Condition::ct_state(CtState::NEW), Condition::protocol(Transport::Udp)]),
                rule([Condition::protocol(Transport::Udp), Condition::ct_state(CtState::NEW)]),
            ),
            (in_set(&[Field::Protocol, Field::Dport], "ports"), {
                // In other registers, after a longer field.
                let to = Register::FIRST.after(8);
                vec![
                    load(Field::Ip6Saddr, 16, first),
                    load(Field::Protocol, 1, to),
                    load(Field::Dport, 2, to.after(1)),
                    Expr::Lookup { set: "ports".into(), key: to, lookup: Lookup::Contains },
                ]
            }),
        ]
    }

    #[test]
    fn equivalent_rules_have_equal_meanings() {
        let all = equivalent_rules();
        for (index, (ours, other)) in all.iter().enumerate() {
            assert_eq!(Meaning::of(ours), Meaning::of(other), "{index}");
            for (different, _) in all.iter().skip(index + 1) {
                assert_ne!(Meaning::of(ours), Meaning::of(different), "{index}");
            }
        }
    }

    #[test]
    fn rules_with_other_effects_have_other_meanings() {
        let map = |fields: &[Field], name| dnat_to_map(Family::Ip, fields, name);
        let fields = [Field::Protocol, Field::Dport];
        let rules = [
            rule([Condition::daddr(net("10.1.0.0/16"))]),
            rule([Condition::daddr(net("10.1.0.0/17"))]),
            rule([Condition::daddr(net("10.1.0.0/16")).negated()]),
            rule([Condition::saddr(net("10.1.0.0/16"))]),
            rule([Condition::daddr(net("10.0.0.0/8"))]),
            rule([Condition::mark(0x2000, 0x2000)]),
            rule([Condition::mark(0x2000, 0)]),
            rule([Condition::mark(0x6000, 0x2000)]),
            rule([]),
            vec![],
            vec![Verdict::Accept.into()],
            vec![Expr::Masquerade],
            map(&fields, "ports"),
            map(&fields, "others"),
            map(&[Field::Protocol, Field::Sport], "ports"),
            map(&[Field::Dport], "ports"),
            in_range(Field::Dport, &[0, 80], &[0, 90]),
            in_range(Field::Dport, &[0, 80], &[0, 91]),
            vec![Expr::Other("limit".into()), Verdict::Drop.into()],
        ];
        for (index, one) in rules.iter().enumerate() {
            for other in &rules[index + 1..] {
                assert_ne!(Meaning::of(one), Meaning::of(other));
            }
        }
    }

    #[test]
    fn rules_that_never_match_differ_from_empty_rules() {
        let first = Register::FIRST;
        let never = vec![compare(first, &[1])];
        assert_ne!(Meaning::of(&never), Meaning::of(&[]));
        let last = Register::FIRST.after(60);
        let too_long =
            vec![Expr::Immediate { value: vec![1; 16], to: last }, compare(last, &[1; 16])];
        assert_ne!(Meaning::of(&too_long), Meaning::of(&[]));
        let constant = vec![Expr::Immediate { value: vec![1], to: first }, compare(first, &[1])];
        assert_eq!(Meaning::of(&constant), Meaning::of(&[]));
    }
}
