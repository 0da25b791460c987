//! The soft and external links of an HDF5 file, which the crate passes over.
//!
//! The structures are those of HDF Group, "HDF5 File Format Specification Version 3.0": groups (III.A to III.C, IV.A.2.c,
//! IV.A.2.g, IV.A.2.r), object headers (IV.A.1), and for groups with many links of the new kind a fractal heap (III.G) with
//! a version 2 B-tree of its entries (III.A.2). All reads go through [`Structures`], which bounds them.

use hdf5_pure::{Source, Superblock};

use super::DEEPEST;
use super::region::Structures;
use super::said;

/// A link that is no object of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Its name with those of the groups around it.
    pub(super) path: Vec<String>,
    /// Where it leads.
    pub(super) target: Target,
    /// Of a soft link in a group of the old kind: where the address of an object would stand, from the start of the file.
    pub(super) place: Option<u64>,
}

/// Where a link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To a path in the same file, from the root where it begins with `/`, else from the group of the link.
    Soft(String),
    /// To a path in another file.
    External(String, String),
}

/// How many links and entries are looked at, as many as [`super::walk`] follows.
const MOST: usize = 1 << 20;

/// Returns the soft and external links in all groups. The groups have been walked before and came to an end.
pub(super) fn links(source: &Structures, superblock: &Superblock) -> Result<Vec<Link>, String> {
    let reader = Reader {
        source,
        base: superblock.base_address.get(),
        offsets: usize::from(superblock.offset_size),
        lengths: usize::from(superblock.length_size),
    };
    let mut found = Vec::new();
    let mut count = 0_usize;
    // The crate has added the base to it already.
    let root = superblock.root_group_address.saturating_sub(reader.base);
    let mut open = vec![(Vec::<String>::new(), root)];
    while let Some((path, address)) = open.pop() {
        for (name, entry) in reader.group(address)? {
            count += 1;
            if count > MOST || path.len() >= DEEPEST {
                return Err(format!(
                    "groups stand in groups more than {DEEPEST} deep, or more than {MOST} links; does one contain itself?"
                ));
            }
            let mut path = path.clone();
            path.push(name);
            match entry {
                Entry::Hard(address) => open.push((path, address)),
                Entry::To(target, place) => found.push(Link { path, target, place }),
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// What an entry of a group is.
enum Entry {
    /// An object, by the address of its header.
    Hard(u64),
    /// A link.
    To(Target, Option<u64>),
}

/// Reads the structures; addresses in them count from the base.
struct Reader<'a> {
    source: &'a Structures,
    base: u64,
    /// The bytes of an address and of a length.
    offsets: usize,
    lengths: usize,
}

/// The most bytes of one structure: no block of a heap or header is larger in a file of weights.
const LARGEST: u64 = 1 << 26;

/// Bytes that are read one field after another.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (bytes, rest) =
            self.0.split_at_checked(count).ok_or_else(|| "a structure ends early".to_owned())?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads a number of so many bytes.
    fn number(&mut self, count: usize) -> Result<u64, String> {
        let bytes = self.take(count)?;
        if count > 8 {
            return Err("a number of more than 8 bytes".to_owned());
        }
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|bytes| bytes.first().copied().unwrap_or(0))
    }

    fn is(&mut self, signature: &[u8]) -> Result<(), String> {
        if self.take(signature.len())? == signature {
            return Ok(());
        }
        Err(format!("there is no structure `{}` where one should be", String::from_utf8_lossy(signature)))
    }
}

/// Returns the text before the first zero byte.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

impl Reader<'_> {
    fn bytes(&self, address: u64, length: u64) -> Result<Vec<u8>, String> {
        let at = self.base.checked_add(address).ok_or_else(|| "an address overflows".to_owned())?;
        let length = usize::try_from(length.min(self.source.len().saturating_sub(at)));
        let length = length.map_err(|_| "a structure is too large".to_owned())?;
        if length as u64 > LARGEST {
            return Err("a structure is too large".to_owned());
        }
        let mut bytes = vec![0; length];
        self.source.read_at(at, &mut bytes).map_err(|error| said(&hdf5_pure::Error::from(error)))?;
        Ok(bytes)
    }

    /// Whether an address says that there is nothing.
    fn is_none(&self, address: u64) -> bool {
        address == u64::MAX >> (64 - 8 * self.offsets.clamp(1, 8))
    }

    /// Returns the entries of an object that is a group; none of another object.
    fn group(&self, address: u64) -> Result<Vec<(String, Entry)>, String> {
        let mut entries = Vec::new();
        for (kind, body) in self.messages(address)? {
            let mut body = Bytes(&body);
            match kind {
                0x11 => {
                    let (tree, heap) = (body.number(self.offsets)?, body.number(self.offsets)?);
                    let names = self.local_heap(heap)?;
                    self.old_entries(tree, &names, 0, &mut entries)?;
                }
                0x02 => {
                    body.byte()?;
                    if body.byte()? & 1 != 0 {
                        body.number(8)?;
                    }
                    let (heap, tree) = (body.number(self.offsets)?, body.number(self.offsets)?);
                    if !self.is_none(heap) && !self.is_none(tree) {
                        let heap = self.heap(heap)?;
                        for id in self.records(tree)? {
                            entries.push(self.link(&self.object(&heap, &id)?)?);
                        }
                    }
                }
                0x06 => entries.push(self.link(body.0)?),
                _ => {}
            }
        }
        Ok(entries)
    }

    /// Returns the messages of an object's header that concern groups, with their types.
    fn messages(&self, address: u64) -> Result<Vec<(u64, Vec<u8>)>, String> {
        let head = self.bytes(address, 64)?;
        let mut fields = Bytes(&head);
        let is_new = head.starts_with(b"OHDR");
        // Blocks of messages: address and length.
        let mut blocks = Vec::new();
        let mut order = 0;
        if is_new {
            fields.take(5)?;
            let flags = fields.byte()?;
            fields.take(if flags & 0x20 == 0 { 0 } else { 16 } + if flags & 0x10 == 0 { 0 } else { 4 })?;
            let length = fields.number(1 << (flags & 3))?;
            order = if flags & 4 == 0 { 0 } else { 2 };
            blocks.push((address + (head.len() - fields.0.len()) as u64, length));
        } else {
            fields.take(8)?;
            let length = fields.number(4)?;
            blocks.push((address + 16, length));
        }
        let mut messages = Vec::new();
        let mut next = 0;
        while let Some(&(start, length)) = blocks.get(next) {
            next += 1;
            let block = self.bytes(start, length)?;
            let mut fields = Bytes(&block);
            if is_new && next > 1 {
                fields.is(b"OCHK")?;
                // The checksum.
                fields.0 = fields.0.get(..fields.0.len().saturating_sub(4)).unwrap_or_default();
            }
            while fields.0.len() >= 4 + order {
                let kind = fields.number(if is_new { 1 } else { 2 })?;
                let length = fields.number(2)? as usize;
                fields.take(if is_new { 1 + order } else { 4 })?;
                let body = fields.take(length)?;
                match kind {
                    0x10 if blocks.len() < 1000 => {
                        let mut body = Bytes(body);
                        blocks.push((body.number(self.offsets)?, body.number(self.lengths)?));
                    }
                    0x11 | 0x02 | 0x06 => messages.push((kind, body.to_vec())),
                    _ => {}
                }
            }
        }
        Ok(messages)
    }

    /// Reads a link message.
    fn link(&self, message: &[u8]) -> Result<(String, Entry), String> {
        let mut fields = Bytes(message);
        fields.byte()?;
        let flags = fields.byte()?;
        let kind = if flags & 8 == 0 { 0 } else { fields.byte()? };
        fields.take(if flags & 4 == 0 { 0 } else { 8 } + if flags & 0x10 == 0 { 0 } else { 1 })?;
        let length = fields.number(1 << (flags & 3))? as usize;
        let name = String::from_utf8_lossy(fields.take(length)?).into_owned();
        let entry = match kind {
            0 => Entry::Hard(fields.number(self.offsets)?),
            1 => {
                let length = fields.number(2)? as usize;
                Entry::To(Target::Soft(text(fields.take(length)?)), None)
            }
            64 => {
                let length = fields.number(2)? as usize;
                let value = fields.take(length)?.get(1..).unwrap_or_default();
                let file = value.split(|byte| *byte == 0).next().unwrap_or_default();
                let object = value.get(file.len() + 1..).unwrap_or_default();
                Entry::To(Target::External(text(file), text(object)), None)
            }
            other => return Err(format!("the link `{name}` is of the kind {other}, which is not known")),
        };
        Ok((name, entry))
    }

    /// Returns the names of a group of the old kind.
    fn local_heap(&self, address: u64) -> Result<Vec<u8>, String> {
        let head = self.bytes(address, 8 + 2 * self.lengths as u64 + self.offsets as u64)?;
        let mut fields = Bytes(&head);
        fields.is(b"HEAP")?;
        fields.take(4)?;
        let size = fields.number(self.lengths)?;
        fields.number(self.lengths)?;
        self.bytes(fields.number(self.offsets)?, size)
    }

    /// Collects the entries of a group of the old kind: the leaves of a version 1 B-tree.
    fn old_entries(
        &self,
        address: u64,
        names: &[u8],
        depth: usize,
        out: &mut Vec<(String, Entry)>,
    ) -> Result<(), String> {
        if depth > 64 || out.len() > MOST {
            return Err("the tree of a group has no end".to_owned());
        }
        let head = self.bytes(address, 8 + 2 * self.offsets as u64)?;
        let mut fields = Bytes(&head);
        let name =
            |at: u64| text(usize::try_from(at).ok().and_then(|at| names.get(at..)).unwrap_or_default());
        if head.starts_with(b"SNOD") {
            fields.take(6)?;
            let count = fields.number(2)?;
            let width = 2 * self.offsets as u64 + 24;
            let body = self.bytes(address + 8, count * width)?;
            let mut fields = Bytes(&body);
            for number in 0..count {
                // Behind the head, in each entry behind the place of its name.
                let place = self.base + address + 8 + number * width + self.offsets as u64;
                let (link, object) = (fields.number(self.offsets)?, fields.number(self.offsets)?);
                let kind = fields.number(4)?;
                fields.take(4)?;
                let value = fields.number(4)?;
                fields.take(12)?;
                let entry = if kind == 2 {
                    Entry::To(Target::Soft(name(value)), Some(place))
                } else {
                    Entry::Hard(object)
                };
                out.push((name(link), entry));
            }
            return Ok(());
        }
        fields.is(b"TREE")?;
        fields.take(2)?;
        let count = fields.number(2)?;
        let width = (self.lengths + self.offsets) as u64;
        let body = self.bytes(address + 8 + 2 * self.offsets as u64, count * width)?;
        let mut fields = Bytes(&body);
        for _ in 0..count {
            fields.number(self.lengths)?;
            self.old_entries(fields.number(self.offsets)?, names, depth + 1, out)?;
        }
        Ok(())
    }

    /// Returns the ids in a version 2 B-tree of links: those behind the hash (type 5) or the order (type 6) of each.
    fn records(&self, address: u64) -> Result<Vec<Vec<u8>>, String> {
        let head = self.bytes(address, 22 + (self.offsets + self.lengths) as u64)?;
        let mut fields = Bytes(&head);
        fields.is(b"BTHD")?;
        fields.byte()?;
        let skip = match fields.byte()? {
            5 => 4,
            6 => 8,
            other => return Err(format!("the list of a group is of the type {other}")),
        };
        let node = fields.number(4)?;
        let record = fields.number(2)?;
        let depth = fields.number(2)?;
        fields.take(2)?;
        let (root, count) = (fields.number(self.offsets)?, fields.number(2)?);
        if record <= skip || depth > 16 || node < 10 + record {
            return Err("the list of a group cannot be".to_owned());
        }
        // How many records a node of each level holds at most, itself and with all below; the first is a leaf.
        let width = |most: u64| 8 - (most.leading_zeros() as usize) / 8;
        let leaf = (node - 10) / record;
        let mut most = vec![(leaf, leaf)];
        for level in 1..=depth as usize {
            let (_, below) = most.get(level - 1).copied().unwrap_or_default();
            let pointer = (self.offsets + width(leaf) + if level > 1 { width(below) } else { 0 }) as u64;
            let own = (node - 10).saturating_sub(pointer) / (record + pointer);
            most.push((own, own.saturating_add((own + 1).saturating_mul(below))));
        }
        let mut ids = Vec::new();
        let mut open = vec![(root, count, depth as usize)];
        while let Some((address, count, level)) = open.pop() {
            let block = self.bytes(address, node)?;
            let mut fields = Bytes(&block);
            fields.is(if level == 0 { b"BTLF" } else { b"BTIN" })?;
            fields.take(2)?;
            for _ in 0..count {
                let id = fields.take(record as usize)?.get(skip as usize..).unwrap_or_default();
                ids.push(id.to_vec());
            }
            if ids.len() > MOST {
                return Err("the list of a group has no end".to_owned());
            }
            let children = if level == 0 { 0 } else { count + 1 };
            for _ in 0..children {
                let address = fields.number(self.offsets)?;
                let (_, all) = most.get(level - 1).copied().unwrap_or_default();
                let count = fields.number(width(leaf))?;
                if level > 1 {
                    fields.number(width(all))?;
                }
                open.push((address, count, level - 1));
            }
        }
        Ok(ids)
    }

    /// Reads the header of a fractal heap.
    fn heap(&self, address: u64) -> Result<Heap, String> {
        let (o, l) = (self.offsets, self.lengths);
        let head = self.bytes(address, (26 + 3 * o + 12 * l) as u64)?;
        let mut fields = Bytes(&head);
        fields.is(b"FRHP")?;
        fields.take(3)?;
        let filters = fields.number(2)?;
        fields.byte()?;
        let object = fields.number(4)?;
        // Huge objects and free space, and counts of all kinds of objects.
        fields.take(l + o + l + o + 8 * l)?;
        let width = fields.number(2)?;
        let (start, largest) = (fields.number(l)?, fields.number(l)?);
        let bits = fields.number(2)?;
        fields.take(2)?;
        let root = fields.number(o)?;
        let rows = fields.number(2)?;
        if filters != 0 {
            return Err("the links of a group are compressed".to_owned());
        }
        if width == 0 || start == 0 || !start.is_power_of_two() || largest < start || bits > 64 || rows > 64 {
            return Err("the heap of a group cannot be".to_owned());
        }
        let offset_width = (bits as usize).div_ceil(8);
        // The library's own rule: the bits of the largest block, or those of the largest object.
        let of_block = (largest.ilog2() as usize).div_ceil(8);
        let length_width = of_block.min((object.max(1).ilog2() / 8) as usize + 1);
        Ok(Heap { width, start, largest, offset_width, length_width, root, rows })
    }

    /// Returns an object of a heap.
    fn object(&self, heap: &Heap, id: &[u8]) -> Result<Vec<u8>, String> {
        let mut fields = Bytes(id);
        let kind = fields.byte()?;
        match kind >> 4 & 3 {
            0 => {
                let offset = fields.number(heap.offset_width)?;
                let length = fields.number(heap.length_width)?;
                let address = heap.find(self, offset)?;
                self.bytes(address, length)
            }
            2 => Ok(fields.take(usize::from(kind & 15) + 1)?.to_vec()),
            _ => Err("a link is too long".to_owned()),
        }
    }
}

/// A fractal heap: blocks in rows, whose sizes double from the third row on.
struct Heap {
    /// The blocks in a row.
    width: u64,
    /// The size of the blocks in the first two rows, and that of the largest block with objects.
    start: u64,
    largest: u64,
    /// The bytes of an offset and of a length in an id.
    offset_width: usize,
    length_width: usize,
    /// The address of the root block, and its rows; none where it holds objects itself.
    root: u64,
    rows: u64,
}

impl Heap {
    fn size_of(&self, row: u64) -> Option<u64> {
        let doubled = u32::try_from(row.saturating_sub(1)).ok()?;
        if row < 2 { Some(self.start) } else { self.start.checked_mul(1_u64.checked_shl(doubled)?) }
    }

    /// Returns the address of an offset in the heap.
    fn find(&self, reader: &Reader<'_>, mut offset: u64) -> Result<u64, String> {
        let cannot = || "a link lies outside the heap of its group".to_owned();
        let (mut block, mut rows) = (self.root, self.rows);
        for _ in 0..64 {
            if rows == 0 {
                return block.checked_add(offset).ok_or_else(cannot);
            }
            // The row and column of the offset; the places before count by rows.
            let (mut row, mut place) = (0, 0_u64);
            let size = loop {
                let size = self.size_of(row).filter(|_| row < rows).ok_or_else(cannot)?;
                let line = size.checked_mul(self.width).ok_or_else(cannot)?;
                if offset < line {
                    break size;
                }
                (offset, row, place) = (offset - line, row + 1, place + self.width);
            };
            place += offset / size;
            offset %= size;
            let start = 5 + reader.offsets as u64 + self.offset_width as u64;
            let at = block.checked_add(start + place * reader.offsets as u64).ok_or_else(cannot)?;
            block = Bytes(&reader.bytes(at, reader.offsets as u64)?).number(reader.offsets)?;
            rows = if size <= self.largest {
                0
            } else {
                // A block of blocks has as many rows as fill its size.
                (0..row)
                    .scan(0_u64, |sum, row| {
                        *sum = sum
                            .saturating_add(self.size_of(row).unwrap_or(u64::MAX).saturating_mul(self.width));
                        Some(*sum)
                    })
                    .position(|sum| sum >= size)
                    .map_or(row, |at| at as u64 + 1)
            };
        }
        Err(cannot())
    }
}
