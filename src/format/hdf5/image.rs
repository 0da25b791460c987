//! The structures of a new HDF5 file, in the form that every version of the HDF5 library reads: superblock 0, object
//! headers 1, groups as symbol tables. The numbers in the comments are sections of the "HDF5 File Format Specification
//! Version 3.0" of the HDF Group. All numbers are little-endian and all structures begin at multiples of 8.
//!
//! Groups of the newer kinds would be a plain list of links, in which a reader looks each name up by going through all, or
//! need two structures more; a symbol table is a search tree.

use crate::format::shown;

/// The address of what is not there.
const UNDEFINED: u64 = u64::MAX;

/// How many names a leaf and how many children an inner node of a group's tree have at most: twice the superblock's
/// "Group Leaf Node K" and "Group Internal Node K" (II.A), with the values that the HDF5 library has by default.
const LEAF: usize = 8;
const INNER: usize = 32;
const LEAF_SIZE: usize = 8 + LEAF * 40;
const INNER_SIZE: usize = 24 + INNER * 8 + (INNER + 1) * 8;

/// The bytes of an attribute's text or texts at most, of the 65,535 of a message (IV.A.1.a), as Keras has it.
/// (keras-team/keras, `keras/src/legacy/saving/legacy_h5_format.py`, `HDF5_OBJECT_HEADER_LIMIT`)
pub(super) const ATTRIBUTE_LIMIT: usize = 64512;

/// Where data lies: at multiples of this, as safetensors and mapped files like it.
const ALIGNMENT: u64 = 64;

/// Messages in object headers (IV.A.2).
const DATASPACE: u16 = 0x01;
const DATATYPE: u16 = 0x03;
const FILL_VALUE: u16 = 0x05;
const DATA_LAYOUT: u16 = 0x08;
const ATTRIBUTE: u16 = 0x0c;
const SYMBOL_TABLE: u16 = 0x11;

/// The type of a message and its body.
type Message = (u16, Vec<u8>);

/// Says what does not fit into a structure.
pub(super) type Fits<T> = Result<T, String>;

/// A group that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupPlace {
    /// Where its object header begins.
    pub(super) header: u64,
    tree: u64,
    heap: u64,
}

/// An attribute: a name and a value.
pub(super) struct Attribute(Vec<u8>);

/// The structures of a file as they grow; the data follow them.
pub(super) struct Image {
    bytes: Vec<u8>,
    /// Where the address of a tensor's data is to be written, and the tensor.
    addresses: Vec<(usize, usize)>,
}

impl Image {
    /// Makes an image with room for the superblock.
    pub(super) fn new() -> Image {
        Image { bytes: vec![0; 96], addresses: Vec::new() }
    }

    fn address(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn put_u64(&mut self, number: u64) {
        self.put(&number.to_le_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    /// Adds an object header (IV.A.1.a) and returns where it begins, and where each message's body does.
    fn header(&mut self, messages: &[Message]) -> Fits<(u64, Vec<usize>)> {
        let address = self.address();
        let count = u16::try_from(messages.len()).map_err(|_| "more than 65,535 attributes".to_owned())?;
        let size: usize = messages.iter().map(|(_, body)| 8 + body.len().next_multiple_of(8)).sum();
        let size = u32::try_from(size).map_err(|_| "attributes of more than 4 GiB".to_owned())?;
        self.put(&[1, 0]);
        self.put(&count.to_le_bytes());
        self.put(&1_u32.to_le_bytes());
        self.put(&size.to_le_bytes());
        self.pad();
        let mut places = Vec::with_capacity(messages.len());
        for (kind, body) in messages {
            let length = u16::try_from(body.len().next_multiple_of(8));
            let length = length.map_err(|_| "an attribute of more than 64 KiB".to_owned())?;
            self.put(&kind.to_le_bytes());
            self.put(&length.to_le_bytes());
            // A datatype never changes.
            self.put(&[u8::from(*kind == DATATYPE), 0, 0, 0]);
            places.push(self.bytes.len());
            self.put(body);
            self.pad();
        }
        Ok((address, places))
    }

    /// Adds a dataset of contiguous data and returns where its object header begins.
    pub(super) fn dataset(
        &mut self,
        tensor: usize,
        datatype: &[u8],
        shape: &[u64],
        size: u64,
        attributes: Vec<Attribute>,
    ) -> Fits<u64> {
        // Version 2 (IV.A.2.f): allocated late, written if it is set, and the default.
        let fill_value = vec![2, 2, 2, 1, 0, 0, 0, 0];
        // Version 3 (IV.A.2.i), contiguous; the address is known when all structures are.
        let mut layout = vec![3, 1];
        layout.extend_from_slice(&UNDEFINED.to_le_bytes());
        layout.extend_from_slice(&size.to_le_bytes());
        let mut messages = vec![
            (DATASPACE, dataspace(shape)),
            (DATATYPE, datatype.to_vec()),
            (FILL_VALUE, fill_value),
            (DATA_LAYOUT, layout),
        ];
        messages.extend(attributes.into_iter().map(|Attribute(body)| (ATTRIBUTE, body)));
        let (address, places) = self.header(&messages)?;
        if size > 0 {
            self.addresses.extend(places.get(3).map(|place| (place + 2, tensor)));
        }
        Ok(address)
    }

    /// Adds a group of objects, which come in the order of their names' bytes (III.A, B, C, D).
    pub(super) fn group(&mut self, members: &[(&str, u64)], attributes: Vec<Attribute>) -> Fits<GroupPlace> {
        let (heap, offsets) = self.names(members.iter().map(|(name, _)| *name));
        let entries: Vec<(u64, u64)> = offsets.into_iter().zip(members.iter().map(|(_, at)| *at)).collect();
        let tree = self.tree(&entries);
        let mut table = tree.to_le_bytes().to_vec();
        table.extend_from_slice(&heap.to_le_bytes());
        let mut messages = vec![(SYMBOL_TABLE, table)];
        messages.extend(attributes.into_iter().map(|Attribute(body)| (ATTRIBUTE, body)));
        let (header, _) = self.header(&messages)?;
        Ok(GroupPlace { header, tree, heap })
    }

    /// Adds a local heap of names (III.D) and returns where it begins, and where each name does in it.
    fn names<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> (u64, Vec<u64>) {
        let mut segment = vec![0; 8];
        let mut offsets = Vec::new();
        for name in names {
            offsets.push(segment.len() as u64);
            segment.extend_from_slice(name.as_bytes());
            segment.resize((segment.len() + 1).next_multiple_of(8), 0);
        }
        let heap = self.address();
        self.put(b"HEAP\0\0\0\0");
        self.put_u64(segment.len() as u64);
        // The end of the list of free blocks: there are none.
        self.put_u64(1);
        self.put_u64(heap + 32);
        self.put(&segment);
        (heap, offsets)
    }

    /// Adds the tree of a group's names, each with where it begins in the heap and its object's address.
    fn tree(&mut self, entries: &[(u64, u64)]) -> u64 {
        // What the level below consists of: addresses, each with the last name.
        let mut below: Vec<(u64, u64)> = Vec::with_capacity(entries.len().div_ceil(LEAF));
        for leaf in entries.chunks(LEAF) {
            below.push((self.address(), leaf.last().map_or(0, |(name, _)| *name)));
            let end = self.bytes.len() + LEAF_SIZE;
            self.put(b"SNOD\x01\0");
            self.put(&(leaf.len() as u16).to_le_bytes());
            for (name, address) in leaf {
                self.put_u64(*name);
                self.put_u64(*address);
                // Nothing about the object is repeated here.
                self.put(&[0; 24]);
            }
            self.bytes.resize(end, 0);
        }
        for level in 0_u8.. {
            let count = below.len().div_ceil(INNER).max(1);
            let first = self.address();
            let at = |node: usize| first + (node * INNER_SIZE) as u64;
            let mut nodes = Vec::with_capacity(count);
            let mut before = 0;
            for node in 0..count {
                let start = (node * INNER).min(below.len());
                let children = below.get(start..(start + INNER).min(below.len())).unwrap_or_default();
                let end = self.bytes.len() + INNER_SIZE;
                self.put(b"TREE\0");
                self.put(&[level]);
                self.put(&(children.len() as u16).to_le_bytes());
                self.put_u64(if node == 0 { UNDEFINED } else { at(node - 1) });
                self.put_u64(if node + 1 == count { UNDEFINED } else { at(node + 1) });
                self.put_u64(before);
                for (address, last) in children {
                    self.put_u64(*address);
                    self.put_u64(*last);
                    before = *last;
                }
                self.bytes.resize(end, 0);
                nodes.push((at(node), before));
            }
            if count == 1 {
                return first;
            }
            below = nodes;
        }
        UNDEFINED
    }

    /// Adds global heaps (III.E) that hold a text so many times, and returns where: each has an address and a number.
    pub(super) fn texts(&mut self, text: &str, count: usize) -> Vec<(u64, u32)> {
        const MOST: usize = 1000;
        // The HDF5 library reads no smaller ones.
        const SMALLEST: usize = 4096;
        let mut places = Vec::with_capacity(count);
        while places.len() < count {
            let here = (count - places.len()).min(MOST);
            let heap = self.address();
            let used = 16 + here * (16 + text.len().next_multiple_of(8));
            let size = (used + 16).max(SMALLEST);
            self.put(b"GCOL\x01\0\0\0");
            self.put_u64(size as u64);
            for number in 1..=here as u32 {
                self.put(&(number as u16).to_le_bytes());
                self.put(&[0; 6]);
                self.put_u64(text.len() as u64);
                self.put(text.as_bytes());
                self.pad();
                places.push((heap, number));
            }
            // The rest is free, which is object 0.
            self.put(&[0; 8]);
            self.put_u64((size - used) as u64);
            self.bytes.resize(self.bytes.len() + size - used - 16, 0);
        }
        places
    }

    /// Ends the structures: returns all bytes before the data, where each tensor's data begins, and the file's size.
    pub(super) fn finish(mut self, root: GroupPlace, sizes: &[u64]) -> (Vec<u8>, Vec<u64>, u64) {
        let mut end = self.address();
        let mut offsets = Vec::with_capacity(sizes.len());
        for &size in sizes {
            if size > 0 {
                end = end.next_multiple_of(ALIGNMENT);
            }
            offsets.push(end);
            end += size;
        }
        for (place, tensor) in std::mem::take(&mut self.addresses) {
            if let (Some(bytes), Some(offset)) = (self.bytes.get_mut(place..place + 8), offsets.get(tensor)) {
                bytes.copy_from_slice(&offset.to_le_bytes());
            }
        }
        let superblock = superblock(root, end);
        self.bytes.splice(..superblock.len(), superblock);
        (self.bytes, offsets, end)
    }
}

/// Superblock version 0 (II.A) with the root group's symbol table entry (III.C).
fn superblock(root: GroupPlace, end: u64) -> Vec<u8> {
    let mut bytes = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0".to_vec();
    bytes.extend_from_slice(&(LEAF as u16 / 2).to_le_bytes());
    bytes.extend_from_slice(&(INNER as u16 / 2).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    // The base address, the free space, the end of the file and the driver; the root's name and header, with its
    // symbol table beside it (kind 1).
    for number in [0, UNDEFINED, end, UNDEFINED, 0, root.header, 1, root.tree, root.heap] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Dataspace version 1 (IV.A.2.b).
fn dataspace(shape: &[u64]) -> Vec<u8> {
    let mut body = vec![1, shape.len() as u8, 0, 0, 0, 0, 0, 0];
    body.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
    body
}

impl Attribute {
    /// Version 3 (IV.A.2.m), which tells the encoding of the name.
    fn new(name: &str, datatype: &[u8], shape: &[u64], data: &[u8]) -> Fits<Attribute> {
        let space = dataspace(shape);
        let length = |bytes: usize| u16::try_from(bytes);
        let (Ok(name_size), Ok(type_size), Ok(space_size)) =
            (length(name.len() + 1), length(datatype.len()), length(space.len()))
        else {
            return Err(format!("an attribute's name of {} bytes", name.len()));
        };
        let mut body = vec![3, 0];
        for size in [name_size, type_size, space_size] {
            body.extend_from_slice(&size.to_le_bytes());
        }
        body.push(encoding([name]));
        body.extend_from_slice(name.as_bytes());
        body.push(0);
        for part in [datatype, &space, data] {
            body.extend_from_slice(part);
        }
        if body.len().next_multiple_of(8) > usize::from(u16::MAX) {
            return Err(format!("the attribute `{}` of {} bytes", shown(name), body.len()));
        }
        Ok(Attribute(body))
    }

    /// Makes an attribute of one text.
    pub(super) fn text(name: &str, text: &str) -> Fits<Attribute> {
        let mut data = text.as_bytes().to_vec();
        data.resize(data.len().max(1), 0);
        Attribute::new(name, &fixed_text([text], data.len()), &[], &data)
    }

    /// Makes an attribute of texts, each in so many bytes.
    pub(super) fn texts(name: &str, texts: &[&str], width: usize) -> Fits<Attribute> {
        let mut data = Vec::with_capacity(texts.len() * width);
        for text in texts {
            let end = data.len() + width;
            data.extend_from_slice(text.as_bytes());
            data.resize(end, 0);
        }
        let datatype = fixed_text(texts.iter().copied(), width);
        Attribute::new(name, &datatype, &[texts.len() as u64], &data)
    }

    /// Makes an attribute of one text in a global heap. h5py returns such as `str`, and fixed ones as bytes, which are
    /// not equal to what Keras compares with.
    pub(super) fn heap_text(name: &str, length: usize, (heap, number): (u64, u32)) -> Fits<Attribute> {
        // Variable-length (IV.A.2.d), a text that ends with a zero, UTF-8; of unsigned bytes.
        let datatype = [0x19, 1, 1, 0, 16, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0];
        let mut data = (length as u32).to_le_bytes().to_vec();
        data.extend_from_slice(&heap.to_le_bytes());
        data.extend_from_slice(&number.to_le_bytes());
        Attribute::new(name, &datatype, &[], &data)
    }
}

/// The datatype of texts of so many bytes, the rest of which are zeros (IV.A.2.d, class 3).
fn fixed_text<'a>(texts: impl IntoIterator<Item = &'a str>, width: usize) -> Vec<u8> {
    let mut datatype = vec![0x13, 1 | encoding(texts) << 4, 0, 0];
    datatype.extend_from_slice(&(width as u32).to_le_bytes());
    datatype
}

/// The number of an encoding: 0 for ASCII, 1 for UTF-8.
fn encoding<'a>(texts: impl IntoIterator<Item = &'a str>) -> u8 {
    u8::from(!texts.into_iter().all(str::is_ascii))
}
