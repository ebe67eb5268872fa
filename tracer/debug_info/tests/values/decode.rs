//! Bytes as text, by their type, as `{:?}` writes it.
//!
//! The fixture prints its values itself, by `{:?}`. Here the same text is made from the bytes of
//! the stopped process and the types of the debug information. So a wrong place, size or type of a
//! part is a difference between two texts.

use debug_info::DebugInfo;
use trace_interface::{
    Kernel,
    symbols::{Enum, Field, Struct, Type, TypeId},
};

use crate::process::Process;

/// See the module's text.
pub struct Decoder<'a> {
    pub info: &'a DebugInfo,
    pub process: &'a Process,
}

/// No list of the fixture is longer. A length that is nowhere is.
const LONGEST: u64 = 1000;
pub const TOO_LONG: &str = "too long";

fn number(bytes: &[u8]) -> u128 {
    let mut word = [0; 16];
    word[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(word)
}

fn word(bytes: &[u8]) -> Result<u64, String> {
    let bytes = bytes.try_into().map_err(|_| "too few bytes")?;
    Ok(u64::from_le_bytes(bytes))
}

impl Decoder<'_> {
    fn size(&self, id: TypeId) -> u64 {
        match &*self.info.describe(id) {
            Type::Unit => 0,
            Type::Integer { bytes, .. } | Type::Float { bytes } => u64::from(*bytes),
            Type::Boolean => 1,
            Type::Character => 4,
            Type::Pointer { .. } => 8,
            Type::Slice { .. } | Type::Str => 16,
            Type::Tail { .. } => 0,
            Type::Array { of, count } => self.size(*of) * count,
            Type::Struct(Struct { bytes, .. })
            | Type::Enum(Enum { bytes, .. })
            | Type::Opaque { bytes, .. } => *bytes,
        }
    }

    fn at(&self, address: u64, id: TypeId) -> Result<String, String> {
        let size = usize::try_from(self.size(id)).map_err(|error| error.to_string())?;
        self.text(id, &self.process.read(address, size)?)
    }

    fn list(&self, address: u64, of: TypeId, count: u64) -> Result<String, String> {
        let size = self.size(of);
        if count > LONGEST {
            return Err(TOO_LONG.into());
        }
        let items: Result<Vec<String>, String> = (0..count)
            .map(|item| self.at(address + item * size, of))
            .collect();
        Ok(format!("[{}]", items?.join(", ")))
    }

    fn string(&self, address: u64, count: u64) -> Result<String, String> {
        if count > LONGEST {
            return Err(TOO_LONG.into());
        }
        let bytes = self.process.read(address, count as usize)?;
        Ok(format!("{:?}", String::from_utf8_lossy(&bytes)))
    }

    pub fn text(&self, id: TypeId, bytes: &[u8]) -> Result<String, String> {
        if bytes.len() as u64 != self.size(id) {
            return Err(format!("{} bytes for {}", bytes.len(), self.size(id)));
        }
        Ok(match &*self.info.describe(id) {
            Type::Unit => "()".into(),
            Type::Integer { signed, .. } => {
                let bits = 8 * bytes.len() as u32;
                let value = number(bytes);
                if *signed {
                    ((value << (128 - bits)).cast_signed() >> (128 - bits)).to_string()
                } else {
                    value.to_string()
                }
            }
            Type::Boolean => match bytes[0] {
                0 => "false".into(),
                1 => "true".into(),
                other => return Err(format!("{other} is no bool")),
            },
            Type::Character => {
                let value = u32::from_le_bytes(bytes.try_into().unwrap());
                format!("{:?}", char::from_u32(value).ok_or("no character")?)
            }
            Type::Float { bytes: 4 } => {
                format!("{:?}", f32::from_le_bytes(bytes.try_into().unwrap()))
            }
            Type::Float { .. } => format!("{:?}", f64::from_le_bytes(bytes.try_into().unwrap())),
            Type::Pointer { to, .. } => self.at(word(bytes)?, *to)?,
            Type::Slice { of } => self.list(word(&bytes[..8])?, *of, word(&bytes[8..])?)?,
            Type::Str => self.string(word(&bytes[..8])?, word(&bytes[8..])?)?,
            Type::Array { of, count } => {
                let size = usize::try_from(self.size(*of)).unwrap();
                let items: Result<Vec<String>, String> = (0..usize::try_from(*count).unwrap())
                    .map(|item| self.text(*of, &bytes[item * size..][..size]))
                    .collect();
                format!("[{}]", items?.join(", "))
            }
            Type::Struct(Struct { name, fields, .. }) => self.structure(name, fields, bytes)?,
            Type::Enum(all) => {
                let tag = all.tag.map(|tag| {
                    let offset = usize::try_from(tag.offset).unwrap();
                    number(&bytes[offset..][..usize::from(tag.bytes)])
                });
                let variant = all
                    .variants
                    .iter()
                    .find(|variant| tag.is_none() || variant.tag == tag)
                    .or_else(|| all.variants.iter().find(|variant| variant.tag.is_none()))
                    .ok_or_else(|| format!("{} has no variant {tag:?}", all.name))?;
                self.fields(&variant.name, &variant.fields, bytes)?
            }
            Type::Opaque { name, .. } => return Err(format!("{name} is not described")),
            Type::Tail { .. } => return Err("no pointer says how long it is".into()),
        })
    }

    fn field<'a>(&self, field: &Field, bytes: &'a [u8]) -> &'a [u8] {
        let offset = usize::try_from(field.offset).unwrap();
        &bytes[offset..][..usize::try_from(self.size(field.type_id)).unwrap()]
    }

    /// Goes down to a field by names; pointers are followed.
    fn down(
        &self,
        fields: &[Field],
        bytes: &[u8],
        path: &str,
    ) -> Result<(TypeId, Vec<u8>), String> {
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        let field = fields
            .iter()
            .find(|field| field.name == first)
            .ok_or_else(|| format!("no field {first} in {fields:?}"))?;
        let bytes = self.field(field, bytes).to_vec();
        if rest.is_empty() {
            return Ok((field.type_id, bytes));
        }
        match &*self.info.describe(field.type_id) {
            Type::Struct(inner) => self.down(&inner.fields, &bytes, rest),
            Type::Pointer { to, .. } => {
                let Type::Struct(inner) = &*self.info.describe(*to) else {
                    return Err(format!("{first} points to no structure"));
                };
                let size = usize::try_from(inner.bytes).unwrap();
                self.down(
                    &inner.fields,
                    &self.process.read(word(&bytes)?, size)?,
                    rest,
                )
            }
            other => Err(format!("{first} is {other:?}")),
        }
    }

    /// Structures of the library are shown as what they stand for.
    fn structure(&self, name: &str, fields: &[Field], bytes: &[u8]) -> Result<String, String> {
        let base = name.split('<').next().unwrap_or_default();
        match base {
            "Vec" | "String" => {
                let prefix = if base == "Vec" { "" } else { "vec." };
                let path = format!("{prefix}buf.inner.ptr.pointer.pointer");
                let (_, pointer) = self.down(fields, bytes, &path)?;
                let (_, length) = self.down(fields, bytes, &format!("{prefix}len"))?;
                let (pointer, length) = (word(&pointer)?, word(&length)?);
                match name {
                    "String" => self.string(pointer, length),
                    "Vec<u8>" => Ok(format!(
                        "{:?}",
                        self.process.read(pointer, length as usize)?
                    )),
                    "Vec<u32>" => {
                        let bytes = self.process.read(pointer, 4 * length as usize)?;
                        let items: Vec<u128> = bytes.chunks(4).map(number).collect();
                        Ok(format!("{items:?}"))
                    }
                    _ => Err(format!("{name} is not known to the test")),
                }
            }
            "Rc" => self.pointed(fields, bytes, "ptr.pointer.value"),
            "Arc" => self.pointed(fields, bytes, "ptr.pointer.data"),
            "NonZero" => Ok(number(bytes).to_string()),
            "&dyn Debug" => {
                let (_, pointer) = self.down(fields, bytes, "pointer")?;
                Ok(number(&self.process.read(word(&pointer)?, 4)?).to_string())
            }
            _ => self.fields(base, fields, bytes),
        }
    }

    fn pointed(&self, fields: &[Field], bytes: &[u8], path: &str) -> Result<String, String> {
        let (id, bytes) = self.down(fields, bytes, path)?;
        self.text(id, &bytes)
    }

    fn fields(&self, name: &str, fields: &[Field], bytes: &[u8]) -> Result<String, String> {
        let tuple = name.starts_with('(');
        let numbered = fields
            .iter()
            .all(|field| field.name.starts_with(|c: char| c.is_numeric()));
        let name = if tuple { "" } else { name };
        let mut parts = Vec::new();
        let mut fields: Vec<&Field> = fields.iter().collect();
        if numbered {
            fields.sort_by_key(|field| field.name.parse::<u32>().unwrap_or_default());
        }
        for field in fields {
            let text = self.text(field.type_id, self.field(field, bytes))?;
            parts.push(if numbered {
                text
            } else {
                format!("{}: {text}", field.name)
            });
        }
        Ok(match parts.len() {
            0 => name.into(),
            1 if tuple => format!("({},)", parts[0]),
            _ if numbered => format!("{name}({})", parts.join(", ")),
            _ => format!("{name} {{ {} }}", parts.join(", ")),
        })
    }
}
