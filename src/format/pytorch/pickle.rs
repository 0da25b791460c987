//! Running a pickle's program, which makes inert data: nothing that it names is looked up, imported or called.
//!
//! The opcodes are those of protocols 0 to 5 (python/cpython, `Lib/pickletools.py`).

use super::escape::{raw_unicode, unquote};
use super::input::Input;
use super::unsafe_names::is_unsafe;
use super::value::{Heap, Node, Object, Value};
use crate::diag::{Diagnostic, FormatCode};
use crate::format::shown;

/// The most instructions of a pickle. The pickle of a checkpoint has about 50 for each tensor.
const MOST_INSTRUCTIONS: u32 = 1 << 25;

/// The most values on the stack; Python puts at most a thousand items there before it appends them.
const MOST_STACK: usize = 1 << 20;

/// The longest line in bytes of the text opcodes.
const LONGEST_LINE: usize = 1 << 16;

/// The highest protocol that is known.
const PROTOCOL: u8 = 5;

/// Runs one pickle and returns its values and the one that it leaves; the input then stands behind its end.
///
/// # Errors
/// Returns `format/bad-pickle` for a program that no pickler writes, `format/truncated`, `format/unsafe-pickle` for one
/// that would call a function that does harm, and `format/pickle-too-large`.
pub(super) fn run(input: &mut Input) -> Result<(Heap, Value), Diagnostic> {
    let heap = Heap::new(input.store());
    let (stack, marks, memo) = (Vec::new(), Vec::new(), Vec::new());
    let mut machine = Machine { input, heap, stack, marks, memo, count: 0, scratch: Vec::new() };
    loop {
        machine.count += 1;
        if machine.count > MOST_INSTRUCTIONS {
            let message = format!("the pickle has over {MOST_INSTRUCTIONS} instructions");
            return Err(Diagnostic::error(FormatCode::PickleTooLarge, message).help(SAVE_ALONE));
        }
        if machine.step()? {
            let value = machine.pop()?;
            return Ok((machine.heap, value));
        }
    }
}

const SAVE_ALONE: &str = "load it in Python and save the state dict alone";

struct Machine<'a> {
    input: &'a mut Input,
    heap: Heap,
    stack: Vec<Value>,
    /// How long the stack was at each mark.
    marks: Vec<u32>,
    memo: Vec<Option<Value>>,
    count: u32,
    scratch: Vec<u8>,
}

impl Machine<'_> {
    fn bad(&self, problem: &str) -> Diagnostic {
        let message = format!("the pickle is damaged: {problem} before byte {}", self.input.position());
        Diagnostic::error(FormatCode::BadPickle, message).help("download or save the file again")
    }

    fn push(&mut self, value: Value) -> Result<(), Diagnostic> {
        if self.stack.len() >= MOST_STACK {
            return Err(self.bad(&format!("over {MOST_STACK} values wait for their use")));
        }
        self.stack.push(value);
        Ok(())
    }

    /// The mark bounds what may be popped.
    fn pop(&mut self) -> Result<Value, Diagnostic> {
        let floor = self.marks.last().map_or(0, |&mark| mark as usize);
        if self.stack.len() > floor
            && let Some(value) = self.stack.pop()
        {
            return Ok(value);
        }
        Err(self.bad("an instruction takes a value that is not there"))
    }

    fn top(&self) -> Result<Value, Diagnostic> {
        self.stack.last().copied().ok_or_else(|| self.bad("an instruction takes a value that is not there"))
    }

    fn pop_mark(&mut self) -> Result<Vec<Value>, Diagnostic> {
        match self.marks.pop() {
            // Every mark was the length of the stack, which nothing shortens below it.
            Some(mark) => Ok(self.stack.drain((mark as usize).min(self.stack.len())..).collect()),
            None => Err(self.bad("an instruction takes values up to a mark that is not there")),
        }
    }

    fn make(&mut self, node: Node) -> Result<(), Diagnostic> {
        let value = self.heap.add(node)?;
        self.push(value)
    }

    /// Runs one instruction; returns whether it was the last.
    fn step(&mut self) -> Result<bool, Diagnostic> {
        let opcode = self.input.byte()?;
        match opcode {
            b'.' => return Ok(true),
            0x80 => {
                let protocol = self.input.byte()?;
                if protocol > PROTOCOL {
                    return Err(self.bad(&format!("its protocol {protocol} is not known")));
                }
            }
            // FRAME: how much to read at once.
            0x95 => drop(self.input.array::<8>()?),
            b'(' => {
                if self.marks.len() >= MOST_STACK {
                    return Err(self.bad("too many marks"));
                }
                self.marks.push(self.stack.len() as u32);
            }
            b'0' => {
                // CPython's POP takes a mark away where nothing lies above it.
                if self.marks.last().is_some_and(|&mark| mark as usize == self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => drop(self.pop_mark()?),
            b'2' => self.push(self.top()?)?,
            b'q' | b'r' | b'p' | 0x94 | b'h' | b'j' | b'g' => self.memo(opcode)?,
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'K' | b'M' | b'J' | 0x8a | 0x8b | b'I' | b'L' | b'F' | b'G' => self.number(opcode)?,
            b'X' | 0x8c | 0x8d | b'V' | b'T' | b'U' | b'S' | b'B' | b'C' | 0x8e | 0x96 => {
                self.text(opcode)?
            }
            b']' => self.make(Node::List(Vec::new()))?,
            b'}' => self.make(Node::Dict(Vec::new()))?,
            0x8f => self.make(Node::Set(Vec::new()))?,
            b')' => self.push(self.heap.empty_tuple())?,
            b't' | 0x85..=0x87 | b'l' | 0x91 | b'd' => self.container(opcode)?,
            b'a' | b'e' | 0x90 => self.append(opcode)?,
            b's' | b'u' => self.set_items(opcode)?,
            b'c' | 0x93 => self.global(opcode)?,
            b'R' | 0x81 | 0x92 | b'i' | b'o' => self.call(opcode)?,
            b'b' => self.build()?,
            b'P' | b'Q' => {
                let id = if opcode == b'Q' { self.pop()? } else { self.line_text()? };
                self.make(Node::Persistent(id))?;
            }
            0x82..=0x84 => {
                return Err(self.bad("it uses an extension of copyreg, which only its writer knows,"));
            }
            0x97 | 0x98 => return Err(self.bad("it keeps a buffer outside, which is not in the file,")),
            other => return Err(self.bad(&format!("the instruction {other:#04x} is not known"))),
        }
        Ok(false)
    }

    fn line_text(&mut self) -> Result<Value, Diagnostic> {
        self.input.line(LONGEST_LINE, &mut self.scratch)?;
        self.keep_scratch(true)
    }

    /// Keeps what was read last as a string or as bytes.
    fn keep_scratch(&mut self, is_text: bool) -> Result<Value, Diagnostic> {
        if !self.heap.keeps(self.scratch.len() as u64, is_text) {
            return Ok(Value::Long(u32::try_from(self.scratch.len()).unwrap_or(u32::MAX)));
        }
        let span = self.heap.keep(&self.scratch)?;
        let is_text = is_text && str::from_utf8(&self.scratch).is_ok();
        Ok(if is_text { Value::Text(span) } else { Value::Bytes(span) })
    }

    /// Reads a decimal number on a line of its own.
    fn line_number(&mut self) -> Result<i64, Diagnostic> {
        self.input.line(LONGEST_LINE, &mut self.scratch)?;
        let number = str::from_utf8(&self.scratch).ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| self.bad("a number is not one"))
    }

    fn memo(&mut self, opcode: u8) -> Result<(), Diagnostic> {
        let index = match opcode {
            0x94 => self.memo.len() as u64,
            b'q' | b'h' => u64::from(self.input.byte()?),
            b'r' | b'j' => u64::from(u32::from_le_bytes(self.input.array()?)),
            _ => u64::try_from(self.line_number()?).map_err(|_| self.bad("a memo's index is negative"))?,
        };
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        if matches!(opcode, b'h' | b'j' | b'g') {
            let value = self.memo.get(place).copied().flatten();
            let value =
                value.ok_or_else(|| self.bad(&format!("it recalls {index}, which it never memorised,")))?;
            return self.push(value);
        }
        // Picklers count up, so an index can never be beyond the number of instructions.
        if index > u64::from(self.count) {
            return Err(self.bad(&format!("it memorises a value as number {index}, which no pickler does,")));
        }
        let value = self.top()?;
        if place >= self.memo.len() {
            self.heap.charge((place + 1 - self.memo.len()) as u64 * 2 * size_of::<Option<Value>>() as u64)?;
            self.memo.resize(place + 1, None);
        }
        self.memo[place] = Some(value);
        Ok(())
    }

    fn number(&mut self, opcode: u8) -> Result<(), Diagnostic> {
        let value = match opcode {
            b'K' => Value::Int(i64::from(self.input.byte()?)),
            b'M' => Value::Int(i64::from(u16::from_le_bytes(self.input.array()?))),
            b'J' => Value::Int(i64::from(i32::from_le_bytes(self.input.array()?))),
            b'G' => Value::Float(f64::from_be_bytes(self.input.array()?)),
            0x8a | 0x8b => {
                let length = if opcode == 0x8a {
                    u64::from(self.input.byte()?)
                } else {
                    let length = i32::from_le_bytes(self.input.array()?);
                    u64::try_from(length).map_err(|_| self.bad("a length is negative"))?
                };
                self.long(length)?
            }
            _ => self.decimal(opcode)?,
        };
        self.push(value)
    }

    /// Reads an integer of that many bytes, in two's complement.
    fn long(&mut self, length: u64) -> Result<Value, Diagnostic> {
        if !self.heap.keeps(length, false) {
            self.input.skip(length)?;
            return Ok(Value::Long(u32::try_from(length).unwrap_or(u32::MAX)));
        }
        self.input.take(length, &mut self.scratch)?;
        let sign = if self.scratch.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut bytes = [sign; 8];
        if let Some(place) = bytes.get_mut(..self.scratch.len()) {
            place.copy_from_slice(&self.scratch);
            return Ok(Value::Int(i64::from_le_bytes(bytes)));
        }
        self.heap.keep(&self.scratch).map(Value::Big)
    }

    /// Reads a number of protocol 0.
    fn decimal(&mut self, opcode: u8) -> Result<Value, Diagnostic> {
        self.input.line(LONGEST_LINE, &mut self.scratch)?;
        let text = str::from_utf8(&self.scratch).map_err(|_| self.bad("a number is not one"))?.trim();
        let digits = text.strip_suffix('L').unwrap_or(text);
        let is_integer =
            !digits.is_empty() && digits.trim_start_matches(['-', '+']).bytes().all(|b| b.is_ascii_digit());
        match (opcode, text) {
            // Protocols 0 and 1 have no other way to write a truth value.
            (b'I', "01") => Ok(Value::Bool(true)),
            (b'I', "00") => Ok(Value::Bool(false)),
            (b'F', _) => text.parse().map(Value::Float).map_err(|_| self.bad("a number is not one")),
            _ if is_integer => match digits.parse() {
                Ok(number) => Ok(Value::Int(number)),
                // No size is as large.
                Err(_) => Ok(Value::Float(f64::INFINITY)),
            },
            _ => Err(self.bad("a number is not one")),
        }
    }

    fn text(&mut self, opcode: u8) -> Result<(), Diagnostic> {
        if matches!(opcode, b'S' | b'V') {
            self.input.line(LONGEST_LINE, &mut self.scratch)?;
            let unescaped = if opcode == b'S' { unquote(&self.scratch) } else { raw_unicode(&self.scratch) };
            self.scratch = unescaped.ok_or_else(|| self.bad("a string of protocol 0 is not one"))?;
            let value = self.keep_scratch(true)?;
            return self.push(value);
        }
        let length = match opcode {
            0x8c | b'U' | b'C' => u64::from(self.input.byte()?),
            0x8d | 0x8e | 0x96 => u64::from_le_bytes(self.input.array()?),
            _ => u64::from(u32::from_le_bytes(self.input.array()?)),
        };
        // The strings of Python 2 are bytes, and texts for the most part.
        let is_text = matches!(opcode, b'X' | 0x8c | 0x8d | b'T' | b'U');
        let value = if self.heap.keeps(length, is_text) {
            self.input.take(length, &mut self.scratch)?;
            self.keep_scratch(is_text)?
        } else {
            let position = self.input.position();
            self.input.skip(length)?;
            self.heap.add(Node::Long { position, length })?
        };
        self.push(value)
    }

    fn container(&mut self, opcode: u8) -> Result<(), Diagnostic> {
        let items = match opcode {
            0x85..=0x87 => {
                let mut items = vec![Value::None; usize::from(opcode - 0x84)];
                for item in items.iter_mut().rev() {
                    *item = self.pop()?;
                }
                items
            }
            _ => self.pop_mark()?,
        };
        match opcode {
            b'l' => self.make(Node::List(items)),
            b'd' => {
                let entries = self.pairs(&items)?;
                self.make(Node::Dict(entries))
            }
            0x91 => self.make(Node::Set(items)),
            _ if items.is_empty() => self.push(self.heap.empty_tuple()),
            _ => self.make(Node::Tuple(items)),
        }
    }

    fn pairs(&self, items: &[Value]) -> Result<Vec<(Value, Value)>, Diagnostic> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.bad("a key has no value"));
        }
        Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
    }

    fn append(&mut self, opcode: u8) -> Result<(), Diagnostic> {
        let items = if opcode == b'a' { vec![self.pop()?] } else { self.pop_mark()? };
        // A vector grows to four first, and then doubles.
        self.heap.charge(48 + items.len() as u64 * 32)?;
        let place = self.top()?;
        match self.heap.node_mut(place) {
            Some(Node::List(list) | Node::Set(list)) => list.extend(items),
            Some(Node::Object(object)) => object.items.extend(items),
            _ => return Err(self.bad("it appends to something that is no list")),
        }
        Ok(())
    }

    fn set_items(&mut self, opcode: u8) -> Result<(), Diagnostic> {
        let items = if opcode == b's' {
            let value = self.pop()?;
            vec![self.pop()?, value]
        } else {
            self.pop_mark()?
        };
        let pairs = self.pairs(&items)?;
        self.heap.charge(96 + items.len() as u64 * 32)?;
        let place = self.top()?;
        match self.heap.node_mut(place) {
            Some(Node::Dict(entries)) => entries.extend(pairs),
            Some(Node::Object(object)) => object.entries.extend(pairs),
            _ => return Err(self.bad("it sets entries of something that is no dictionary")),
        }
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Result<(), Diagnostic> {
        let (module, name) = if opcode == 0x93 {
            let (name, module) = (self.pop()?, self.pop()?);
            let (Value::Text(module), Value::Text(name)) = (module, name) else {
                return Err(self.bad("the name of a class is no string"));
            };
            (module, name)
        } else {
            let (module, name) = self.global_lines()?;
            (module, name)
        };
        self.make(Node::Global(module, name))
    }

    fn global_lines(&mut self) -> Result<(super::value::Span, super::value::Span), Diagnostic> {
        self.input.line(LONGEST_LINE, &mut self.scratch)?;
        let module = self.heap.keep(&self.scratch)?;
        self.input.line(LONGEST_LINE, &mut self.scratch)?;
        Ok((module, self.heap.keep(&self.scratch)?))
    }

    /// Remembers what would be called with what.
    fn call(&mut self, opcode: u8) -> Result<(), Diagnostic> {
        let (callable, args) = match opcode {
            b'i' | b'o' => {
                let mut args = self.pop_mark()?;
                let callable = if opcode == b'i' {
                    let (module, name) = self.global_lines()?;
                    self.heap.add(Node::Global(module, name))?
                } else if args.is_empty() {
                    return Err(self.bad("it makes an object of no class"));
                } else {
                    args.remove(0)
                };
                (callable, self.heap.add(Node::Tuple(args))?)
            }
            _ => {
                if opcode == 0x92 {
                    // Arguments with names; they are as little used as the others.
                    self.pop()?;
                }
                let args = self.pop()?;
                (self.pop()?, args)
            }
        };
        self.refuse_unsafe(callable)?;
        if self.heap.is_getattr(callable) {
            return self.attribute(callable, args);
        }
        // State dicts, and the hooks that are saved with each tensor.
        if args == self.heap.empty_tuple() && self.heap.is_global(callable, "collections.OrderedDict") {
            return self.make(Node::Dict(Vec::new()));
        }
        let (items, entries) = (Vec::new(), Vec::new());
        self.make(Node::Object(Box::new(Object { callable, args, state: Value::None, items, entries })))
    }

    /// `getattr(parent, name)`, which protocols below 4 write for a class in a class, and all for a bound method. Of a class
    /// it is the class's attribute under its full name, as protocol 4 names it; of an object it is a value that nothing
    /// may call.
    fn attribute(&mut self, callable: Value, args: Value) -> Result<(), Diagnostic> {
        let of =
            self.heap.global(callable).map_or(String::new(), |(module, name)| format!("{module}.{name}"));
        let name = match self.heap.sequence(args) {
            Some([parent, name]) => self.heap.str(*name).map(|name| (*parent, name.to_owned())),
            _ => None,
        };
        let Some((parent, name)) = name.filter(|(_, name)| !name.starts_with("__")) else {
            return Err(unsafe_call(&of));
        };
        if let Some((module, outer)) = self.heap.global(parent) {
            let (module, path) = (module.to_owned(), format!("{outer}.{name}"));
            let path = self.heap.keep(path.as_bytes())?;
            let module = self.heap.keep(module.as_bytes())?;
            let value = self.heap.add(Node::Global(module, path))?;
            self.refuse_unsafe(value)?;
            return self.push(value);
        }
        let is_value = self.heap.object(parent).is_some_and(|parent| !self.heap.is_getattr(parent.callable));
        if !is_value {
            return Err(unsafe_call(&of));
        }
        let (items, entries) = (Vec::new(), Vec::new());
        self.make(Node::Object(Box::new(Object { callable, args, state: Value::None, items, entries })))
    }

    fn refuse_unsafe(&self, callable: Value) -> Result<(), Diagnostic> {
        // What an attribute of an object does cannot be told.
        if self.heap.object(callable).is_some_and(|object| self.heap.is_getattr(object.callable)) {
            return Err(unsafe_call("what getattr returns"));
        }
        let Some((module, name)) =
            self.heap.global(callable).filter(|(module, name)| is_unsafe(module, name))
        else {
            return Ok(());
        };
        Err(unsafe_call(&format!("{module}.{name}")))
    }

    fn build(&mut self) -> Result<(), Diagnostic> {
        let state = self.pop()?;
        let place = self.top()?;
        // The state of anything else, such as the `_metadata` of a state dict, says nothing about tensors.
        if let Some(Node::Object(object)) = self.heap.node_mut(place) {
            object.state = state;
        }
        Ok(())
    }
}

fn unsafe_call(name: &str) -> Diagnostic {
    let message = format!(
        "the pickle calls `{}`, which no checkpoint does: loading it elsewhere may do harm",
        shown(name)
    );
    let help = "nothing was run; do not load this file in Python, and fetch it from a source that you trust";
    Diagnostic::error(FormatCode::UnsafePickle, message).help(help)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::input::Memory;
    use super::*;

    fn run_bytes(bytes: &[u8]) -> Result<(Heap, Value), Diagnostic> {
        run(&mut Input::new(Arc::new(Memory(bytes.to_vec())), 0, bytes.len() as u64))
    }

    /// Writes a value as Python does.
    fn shown_value(heap: &Heap, value: Value) -> String {
        let list =
            |items: &[Value]| items.iter().map(|item| shown_value(heap, *item)).collect::<Vec<_>>().join(",");
        let pairs = |entries: &[(Value, Value)]| {
            let pair = |(key, item): &(Value, Value)| {
                format!("{}:{}", shown_value(heap, *key), shown_value(heap, *item))
            };
            entries.iter().map(pair).collect::<Vec<_>>().join(",")
        };
        match value {
            Value::None => "None".to_owned(),
            Value::Bool(truth) => truth.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Float(number) => format!("{number:?}"),
            Value::Big(span) => format!("big{:?}", heap.bytes(span)),
            Value::Text(span) => format!("{:?}", str::from_utf8(heap.bytes(span)).expect("UTF-8")),
            Value::Bytes(span) => format!("b{:?}", heap.bytes(span)),
            Value::Long(length) => format!("long{length}"),
            Value::Node(_) => match heap.node(value).expect("is there") {
                Node::Tuple(items) => format!("({})", list(items)),
                Node::List(items) => format!("[{}]", list(items)),
                Node::Set(items) => format!("{{{}}}", list(items)),
                Node::Dict(entries) => format!("{{{}}}", pairs(entries)),
                Node::Global(..) => {
                    let (module, name) = heap.global(value).expect("UTF-8");
                    format!("{module}.{name}")
                }
                Node::Long { length, .. } => format!("long{length}"),
                Node::Persistent(id) => format!("@{}", shown_value(heap, *id)),
                Node::Object(object) => {
                    let made = shown_value(heap, object.callable) + &shown_value(heap, object.args);
                    let rest = format!("[{}]{{{}}}", list(&object.items), pairs(&object.entries));
                    format!("{made}|{}|{rest}", shown_value(heap, object.state))
                }
            },
        }
    }

    #[track_caller]
    fn gives(bytes: &[u8], expected: &str) {
        let (heap, value) = run_bytes(bytes).expect("runs");
        assert_eq!(shown_value(&heap, value), expected);
    }

    #[test]
    fn text_opcodes_are_read() {
        gives(b"(I1\nI-7\nI01\nI00\nL99L\nL-5\nF1.5\nF-inf\nNt.", "(1,-7,true,false,99,-5,1.5,-inf,None)");
        gives(b"L1180591620717411303424L\n.", "inf");
        gives(
            b"(lp0\nS'a\\x41\\n\\101\\\\\\q'\np1\naS\"it's\"\nag1\na.",
            "[\"aA\\nA\\\\\\\\q\",\"it's\",\"aA\\nA\\\\\\\\q\"]",
        );
        gives(b"(dp0\nV\\u20ac\\U0001f600\xe9\\n\nI1\ns.", "{\"\u{20ac}\u{1f600}\u{e9}\\\\n\":1}");
        gives(b"Pname\n.", "@\"name\"");
        for bad in [
            &b"I1x\n."[..],
            b"F1.5.1\n.",
            b"S'a\n.",
            b"Sa'\n.",
            b"S'\\x4'\n.",
            b"V\\u12\n.",
            b"L\n.",
            b"I\n.",
        ] {
            assert_eq!(run_bytes(bad).expect_err("is damaged").code, "format/bad-pickle", "{bad:?}");
        }
    }

    #[test]
    fn binary_opcodes_are_read() {
        gives(
            b"\x80\x02(K\xffM\xff\xffJ\xfe\xff\xff\xffG\x3f\xf8\0\0\0\0\0\0\x88\x89t.",
            "(255,65535,-2,1.5,true,false)",
        );
        gives(b"(\x8a\0\x8a\x01\xff\x8a\x02\0\x80\x8b\x01\0\0\0\x05t.", "(0,-1,-32768,5)");
        gives(b"\x8a\x09\0\0\0\0\0\0\0\0\x01.", "big[0, 0, 0, 0, 0, 0, 0, 0, 1]");
        gives(b"(X\x01\0\0\0aU\x01bT\x01\0\0\0cC\x01dB\x01\0\0\0et.", "(\"a\",\"b\",\"c\",b[100],b[101])");
        gives(b"(U\x01\xffX\x01\0\0\0\xfft.", "(b[255],b[255])");
        gives(
            b"\x80\x05\x95\x00\0\0\0\0\0\0\0(\x8c\x01a\x94\x8d\x01\0\0\0\0\0\0\0b\x94h\0j\x01\0\0\0t.",
            "(\"a\",\"b\",\"a\",\"b\")",
        );
        gives(b"(\x8e\x01\0\0\0\0\0\0\0a\x96\x01\0\0\0\0\0\0\0bt.", "(b[97],b[98])");
        gives(b"(N\x85NN\x86NNN\x87)(lt.", "((None),(None,None),(None,None,None),(),[])");
        gives(
            b"(](K\x01K\x02e}(K\x03K\x04u\x8f(K\x05\x90(K\x06\x91(K\x07K\x08dt.",
            "([1,2],{3:4},{5},{6},{7:8})",
        );
        gives(b"(K\x01K\x020K\x032(N1t.", "(1,3,3)");
    }

    #[test]
    fn objects_are_remembered() {
        gives(b"ca\nB\n)R.", "a.B()|None|[]{}");
        gives(b"ca\nB\n)\x81K\x01b.", "a.B()|1|[]{}");
        gives(b"ca\nB\n)}\x92.", "a.B()|None|[]{}");
        gives(b"\x8c\x01a\x8c\x01B\x93)R(K\x01K\x02eK\x03K\x04s.", "a.B()|None|[1,2]{3:4}");
        gives(b"(K\x01ia\nB\n.", "a.B(1)|None|[]{}");
        gives(b"(ca\nB\nK\x01o.", "a.B(1)|None|[]{}");
        gives(b"ccollections\nOrderedDict\n)RK\x01K\x02s}b.", "{1:2}");
        gives(b"K\x01Q.", "@1");
    }

    #[test]
    fn programs_cut_anywhere_are_errors() {
        let program = b"\x80\x02}q\0(X\x01\0\0\0aca\nB\n)R}(K\x01Nubu.";
        assert!(run_bytes(program).is_ok());
        for length in 0..program.len() {
            assert!(run_bytes(&program[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn long_texts_are_passed_over() {
        let text =
            |length: u32| [b"X", &length.to_le_bytes()[..], &vec![b'a'; length as usize], b"."].concat();
        gives(&text(2 << 20), &format!("long{}", 2 << 20));
        let (heap, value) = run_bytes(&text(1 << 20)).expect("runs");
        assert_eq!(heap.str(value).map(str::len), Some(1 << 20));
    }
}
