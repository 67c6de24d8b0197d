//! The effect of a rule, in a form that does not depend on the choice of its expressions. `nft list ruleset >f; nft -f f`
//! rewrites rules: nft loads only the bytes that a prefix covers, writes a range as two comparisons, loads adjacent fields at
//! once, and can use other registers.

use super::Family;
use super::expr::{Expr, Lookup, Nat};
use super::field::FieldSource;
use super::register::{REGISTERS_BYTES, Register};

/// Rules with equal meanings have the same effect on every packet. Some rules with the same effect have different meanings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    /// The actions of the rule in their order, each with the conditions before it. The conditions are sorted.
    steps: Vec<(Vec<Constraint>, Action)>,
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
    /// The end of the rule.
    End,
}

/// A symbolic byte of the registers: `origin & mask ^ xor`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SymbolicByte {
    origin: Origin,
    mask: u8,
    xor: u8,
}

/// Where a byte of the registers comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The byte is constant.
    Constant,
    /// A byte of a header or of the kernel's metadata.
    Field(FieldSource, u32),
    /// A byte of the data of a map: the name of the map, the key, and the offset in the data.
    Map(String, Vec<SymbolicByte>, usize),
}

impl SymbolicByte {
    fn constant(value: u8) -> Self {
        Self { origin: Origin::Constant, mask: 0, xor: value }
    }

    fn whole(origin: Origin) -> Self {
        Self { origin, mask: 0xff, xor: 0 }
    }

    fn masked(self, mask: u8, xor: u8) -> Self {
        let masked = Self { mask: self.mask & mask, xor: (self.xor & mask) ^ xor, ..self };
        if masked.mask == 0 { Self::constant(masked.xor) } else { masked }
    }
}

impl Meaning {
    pub(super) fn of(exprs: &[Expr]) -> Self {
        let mut machine = SymbolicMachine {
            registers: vec![None; REGISTERS_BYTES],
            conditions: Vec::new(),
            steps: Vec::new(),
        };
        exprs.iter().for_each(|expr| machine.execute(expr));
        machine.end_step(Action::End);
        Self { steps: machine.steps }
    }
}

/// Executes the expressions of a rule with symbolic registers.
struct SymbolicMachine {
    /// The content of each byte of the registers; `None` if the rule did not load it.
    registers: Vec<Option<SymbolicByte>>,
    /// The conditions since the last action, sorted and without duplicates.
    conditions: Vec<Constraint>,
    steps: Vec<(Vec<Constraint>, Action)>,
}

impl SymbolicMachine {
    fn execute(&mut self, expr: &Expr) {
        match expr {
            Expr::Load { field, bytes, to } => self.load(field.source(), *bytes, *to),
            Expr::LoadPayload { header, offset, bytes, to } => {
                self.load(FieldSource::Payload(*header, *offset), *bytes, *to);
            }
            Expr::Immediate { value, to } => {
                self.fill(*to, value.iter().copied().map(SymbolicByte::constant))
            }
            Expr::Bitwise { register, mask, xor } => {
                let at = self.registers.iter_mut().skip(register.byte());
                for (byte, (mask, xor)) in at.zip(mask.iter().zip(xor)) {
                    *byte = byte.take().map(|byte| byte.masked(*mask, *xor));
                }
            }
            Expr::Compare { register, is_equal, value } => {
                self.compare(*register, *is_equal, value);
            }
            Expr::AtLeast { register, value } => {
                self.require(Constraint::AtLeast(
                    self.bytes(*register, value.len()),
                    value.clone(),
                ));
            }
            Expr::AtMost { register, value } => {
                self.require(Constraint::AtMost(self.bytes(*register, value.len()), value.clone()));
            }
            Expr::Range { register, is_inside, first, last } => {
                let bytes = self.bytes(*register, first.len());
                if *is_inside {
                    self.require(Constraint::AtLeast(bytes.clone(), first.clone()));
                    self.require(Constraint::AtMost(bytes, last.clone()));
                } else {
                    self.require(Constraint::Outside(bytes, first.clone(), last.clone()));
                }
            }
            Expr::Lookup { set, key, lookup } => self.look_up(set, *key, *lookup),
            Expr::SetMark { from } => self.end_step(Action::SetMark(self.bytes(*from, 4))),
            Expr::Nat { nat, family, address, port } => {
                let length = if *family == Family::Ip6 { 16 } else { 4 };
                let address = address.map(|register| self.bytes(register, length));
                let port = port.map(|register| self.bytes(register, 2));
                self.end_step(Action::Nat(*nat, *family, address, port));
            }
            Expr::Redirect { port } => {
                self.end_step(Action::Redirect(port.map(|register| self.bytes(register, 2))));
            }
            // A counter has no effect on a packet.
            Expr::Counter => {}
            Expr::SwapBytes { .. }
            | Expr::Verdict(_)
            | Expr::Masquerade
            | Expr::Reject { .. }
            | Expr::XtMatch { .. }
            | Expr::XtTarget { .. }
            | Expr::Other(_) => self.end_step(Action::Other(expr.clone())),
        }
    }

    fn load(&mut self, source: FieldSource, bytes: u8, to: Register) {
        let byte = |at: u8| {
            let at = u32::from(at);
            SymbolicByte::whole(match source {
                FieldSource::Payload(header, offset) => {
                    Origin::Field(FieldSource::Payload(header, offset.saturating_add(at)), 0)
                }
                other => Origin::Field(other, at),
            })
        };
        self.fill(to, (0..bytes).map(byte));
    }

    /// The kernel pads the last register with zeros. The content of the registers after it is dropped, because every
    /// concatenation is loaded from its beginning.
    fn fill(&mut self, to: Register, bytes: impl Iterator<Item = SymbolicByte>) {
        self.registers.truncate(to.byte());
        self.registers.extend(bytes.map(Some));
        let filled = self.registers.len().next_multiple_of(size_of::<u32>());
        self.registers.resize(filled, Some(SymbolicByte::constant(0)));
        self.registers.resize(REGISTERS_BYTES, None);
    }

    /// The loaded bytes from a register on, at most `count`.
    fn bytes(&self, from: Register, count: usize) -> Vec<SymbolicByte> {
        let loaded = self.registers.iter().skip(from.byte()).map_while(Clone::clone);
        loaded.take(count).collect()
    }

    /// Adds a condition to those of the next action.
    fn require(&mut self, condition: Constraint) {
        if let Err(at) = self.conditions.binary_search(&condition) {
            self.conditions.insert(at, condition);
        }
    }

    /// Adds an action, with the conditions since the last action.
    fn end_step(&mut self, action: Action) {
        let conditions = std::mem::take(&mut self.conditions);
        self.steps.push((conditions, action));
    }

    fn compare(&mut self, register: Register, is_equal: bool, value: &[u8]) {
        let bytes = self.bytes(register, value.len());
        let mut all = Vec::new();
        // A comparison with bytes that were not loaded never matches.
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

    fn look_up(&mut self, set: &str, key: Register, lookup: Lookup) {
        let bytes = self.bytes(key, REGISTERS_BYTES);
        match lookup {
            Lookup::Contains => self.require(Constraint::In(bytes, set.into())),
            Lookup::Lacks => self.require(Constraint::NotIn(bytes, set.into())),
            Lookup::Verdict => self.end_step(Action::VerdictMap(bytes, set.into())),
            Lookup::Load(to) => {
                self.require(Constraint::In(bytes.clone(), set.into()));
                // The length of the map's data is unknown here, so the data fills all registers from `to` on.
                let of_map = |at| SymbolicByte::whole(Origin::Map(set.into(), bytes.clone(), at));
                self.fill(to, (0..REGISTERS_BYTES - to.byte()).map(of_map));
            }
        }
    }
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
                    Expr::LoadPayload { header: 1, offset: 12, bytes: 8, to: first },
                    compare(first, &[10, 0, 0, 1, 10, 0, 0, 2]),
                    drop,
                ],
            ),
            (
                in_range(Field::Dport, &ports[0], &ports[1]),
                vec![
                    load(Field::Dport, 2, first),
                    Expr::AtLeast { register: first, value: ports[0].into() },
                    Expr::AtMost { register: first, value: ports[1].into() },
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
