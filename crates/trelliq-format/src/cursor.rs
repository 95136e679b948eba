//! Reads little-endian fields from bytes, never past their end.

/// A position in bytes. Errors say at which byte they end.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes from `start`, a former position, to here.
    pub fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.position]
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.position.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.position..end));
        let taken = taken.ok_or_else(|| {
            let (position, end) = (self.position, self.bytes.len());
            format!("{len} bytes at byte {position} go past its end at {end}: it is truncated")
        })?;
        self.position += len;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string after its 64-bit length.
    pub fn text(&mut self) -> Result<&'a str, String> {
        let len = self.u64()?;
        let len = usize::try_from(len).map_err(|_| format!("a string of {len} bytes"))?;
        let start = self.position;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|e| format!("the string at byte {start}: {e}"))
    }
}
