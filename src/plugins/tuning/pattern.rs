//! Regular expressions of the allowlist: literals, `.`, classes, `* + ?`, groups, alternation, `^` and `$`, escapes, with the
//! meaning that they have in RE2. Any other syntax of RE2 is an error, and never a literal.
//!
//! A pattern becomes a nondeterministic automaton. The time of a match is at most the product of the lengths of the text
//! and the pattern.

use std::iter::Peekable;
use std::str::Chars;

pub struct Pattern(Vec<Instruction>);

enum Instruction {
    /// Matches one character of the class.
    OneOf(Set),
    /// Continues at two instructions. Each is given as its distance from this instruction.
    Fork(isize, isize),
    Jump(isize),
    Start,
    End,
}

/// A class of characters: those in `ranges`, or, if `is_negated`, all characters that are not in `ranges`.
struct Set {
    is_negated: bool,
    ranges: Vec<(char, char)>,
}

/// The maximum depth of nested groups. It limits the recursion of the parser.
const DEPTH_MAX: usize = 100;
/// The maximum length of a pattern, in bytes.
const LENGTH_MAX: usize = 4096;

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LENGTH_MAX {
            return Err(format!("it is longer than {LENGTH_MAX} bytes"));
        }
        let mut parser = Parser { rest: text.chars().peekable(), steps: Vec::new(), depth: 0 };
        parser.alternatives()?;
        match parser.rest.next() {
            Some(_) => Err("it has a ) without a (".into()),
            None => Ok(Self(parser.steps)),
        }
    }

    /// Whether the pattern matches any part of the text.
    pub fn matches_part_of(&self, text: &str) -> bool {
        let mut states = vec![false; self.0.len() + 1];
        let mut rest = text.chars();
        let mut is_start = true;
        loop {
            let next = rest.next();
            self.enter(0, &mut states, is_start, next.is_none());
            if states[self.0.len()] {
                return true;
            }
            let Some(c) = next else { return false };
            is_start = false;
            let is_end = rest.as_str().is_empty();
            let before = std::mem::replace(&mut states, vec![false; self.0.len() + 1]);
            for (at, step) in self.0.iter().enumerate().filter(|(at, _)| before[*at]) {
                if let Instruction::OneOf(set) = step
                    && set.has(c)
                {
                    self.enter(at + 1, &mut states, is_start, is_end);
                }
            }
        }
    }

    /// Marks the state `at` as reached, and all states that follow it without reading a character.
    fn enter(&self, at: usize, states: &mut [bool], is_start: bool, is_end: bool) {
        let mut waiting = vec![at];
        while let Some(at) = waiting.pop() {
            if std::mem::replace(&mut states[at], true) {
                continue;
            }
            match self.0.get(at) {
                Some(Instruction::Fork(one, other)) => {
                    waiting.extend([at.wrapping_add_signed(*one), at.wrapping_add_signed(*other)]);
                }
                Some(Instruction::Jump(distance)) => {
                    waiting.push(at.wrapping_add_signed(*distance))
                }
                Some(Instruction::Start) if is_start => waiting.push(at + 1),
                Some(Instruction::End) if is_end => waiting.push(at + 1),
                _ => {}
            }
        }
    }
}

impl Set {
    fn of(c: char) -> Self {
        Self { is_negated: false, ranges: vec![(c, c)] }
    }

    fn has(&self, c: char) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != self.is_negated
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    steps: Vec<Instruction>,
    depth: usize,
}

impl Parser<'_> {
    /// Reads alternatives up to the end of the pattern, or up to the `)` of the group.
    fn alternatives(&mut self) -> Result<(), String> {
        let mut jumps = Vec::new();
        loop {
            let start = self.steps.len();
            self.sequence()?;
            if self.rest.next_if_eq(&'|').is_none() {
                break;
            }
            self.wrap(start, |length| Instruction::Fork(1, length + 2));
            jumps.push(self.steps.len());
            self.steps.push(Instruction::Jump(0));
        }
        for jump in jumps {
            self.steps[jump] = Instruction::Jump(distance(self.steps.len() - jump));
        }
        Ok(())
    }

    fn sequence(&mut self) -> Result<(), String> {
        while let Some(c) = self.rest.next_if(|c| !matches!(c, '|' | ')')) {
            let start = self.steps.len();
            let step = match c {
                '(' => {
                    self.group()?;
                    self.repetition(start)?;
                    continue;
                }
                '^' => Instruction::Start,
                '$' => Instruction::End,
                '.' => Instruction::OneOf(Set { is_negated: true, ..Set::of('\n') }),
                '[' => Instruction::OneOf(self.class()?),
                '\\' => self.escape()?,
                '*' | '+' | '?' | '{' => return Err(format!("{c} repeats nothing")),
                literal => Instruction::OneOf(Set::of(literal)),
            };
            self.steps.push(step);
            self.repetition(start)?;
        }
        Ok(())
    }

    fn group(&mut self) -> Result<(), String> {
        if self.rest.next_if_eq(&'?').is_some() && self.rest.next() != Some(':') {
            return Err("the group (? is not supported; (?: is".into());
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("it has more than {DEPTH_MAX} nested groups"));
        }
        self.alternatives()?;
        self.depth -= 1;
        self.rest.next_if_eq(&')').map(drop).ok_or_else(|| "it has a ( without a )".into())
    }

    /// Reads the repetition of the piece that begins at `start`.
    fn repetition(&mut self, start: usize) -> Result<(), String> {
        match self.rest.peek() {
            Some('*') => {
                self.wrap(start, |length| Instruction::Fork(1, length + 2));
                self.steps.push(Instruction::Jump(-distance(self.steps.len() - start)));
            }
            Some('+') => {
                let length = distance(self.steps.len() - start);
                self.steps.push(Instruction::Fork(-length, 1));
            }
            Some('?') => self.wrap(start, |length| Instruction::Fork(1, length + 1)),
            Some('{') => return Err("repetition with { is not supported".into()),
            _ => return Ok(()),
        }
        self.rest.next();
        // A lazy repetition matches the same texts as a greedy one.
        self.rest.next_if_eq(&'?');
        match self.rest.peek() {
            Some(c @ ('*' | '+' | '?' | '{')) => Err(format!("{c} repeats a repetition")),
            _ => Ok(()),
        }
    }

    /// Inserts an instruction before the piece that begins at `start`. The distances inside the piece do not change.
    fn wrap(&mut self, start: usize, step: fn(isize) -> Instruction) {
        let length = self.steps.len() - start;
        self.steps.insert(start, step(distance(length)));
    }

    /// Reads a class; its `[` is read already.
    fn class(&mut self) -> Result<Set, String> {
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        let mut set = Set { is_negated, ranges: Vec::new() };
        loop {
            let first = self.rest.next().ok_or("it has a [ without a ]")?;
            let first = match first {
                // As the first character, `]` is a literal.
                ']' if !set.ranges.is_empty() => return Ok(set),
                '[' if self.rest.peek() == Some(&':') => {
                    return Err("classes with names are not supported".into());
                }
                '\\' => match self.escaped()? {
                    Escaped::Literal(c) => c,
                    Escaped::Class(class) if !class.is_negated => {
                        set.ranges.extend(class.ranges);
                        continue;
                    }
                    Escaped::Class(_) => {
                        return Err("a negated class inside [ ] is not supported".into());
                    }
                },
                c => c,
            };
            let last = self.end_of_range(first)?;
            set.ranges.push((first, last));
        }
    }

    fn end_of_range(&mut self, first: char) -> Result<char, String> {
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('-') || ahead.peek().is_none_or(|c| *c == ']') {
            return Ok(first);
        }
        self.rest = ahead;
        let last = match self.rest.next() {
            Some('\\') => match self.escaped()? {
                Escaped::Literal(c) => c,
                Escaped::Class(_) => return Err("a range ends with a class".into()),
            },
            Some(c) => c,
            None => return Err("it has a [ without a ]".into()),
        };
        if first > last { Err(format!("the range {first}-{last} is empty")) } else { Ok(last) }
    }

    fn escape(&mut self) -> Result<Instruction, String> {
        if self.rest.next_if_eq(&'A').is_some() {
            return Ok(Instruction::Start);
        }
        if self.rest.next_if_eq(&'z').is_some() {
            return Ok(Instruction::End);
        }
        Ok(Instruction::OneOf(match self.escaped()? {
            Escaped::Literal(c) => Set::of(c),
            Escaped::Class(set) => set,
        }))
    }

    /// Reads an escape; its `\` is read already.
    fn escaped(&mut self) -> Result<Escaped, String> {
        let c = self.rest.next().ok_or("it ends with a \\")?;
        let ranges: &[(char, char)] = match c.to_ascii_lowercase() {
            'd' => &[('0', '9')],
            'w' => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
            's' => &[('\t', '\n'), ('\x0c', '\r'), (' ', ' ')],
            _ if c.is_ascii() && !c.is_ascii_alphanumeric() => return Ok(Escaped::Literal(c)),
            _ => return Err(format!("\\{c} is not supported")),
        };
        let is_negated = c.is_ascii_uppercase();
        Ok(Escaped::Class(Set { is_negated, ranges: ranges.to_vec() }))
    }
}

enum Escaped {
    Literal(char),
    Class(Set),
}

/// Converts a number of instructions to a distance. The number fits, because LENGTH_MAX limits a pattern.
fn distance(steps: usize) -> isize {
    isize::try_from(steps).unwrap_or(isize::MAX)
}

#[cfg(test)]
mod tests;
