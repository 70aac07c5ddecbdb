//! The block formats of GGML: groups of elements that share scales.

/// Declares the formats: each one's name as gguf spells it, its number in a GGUF file, elements and stored bytes of a
/// block.
macro_rules! formats {
    ($($name:ident $number:literal $elements:literal $bytes:literal)*) => {
        /// A block format, under the name that gguf gives it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(non_camel_case_types, reason = "gguf's spelling")]
        pub enum Block {
            $($name,)*
        }

        impl Block {
            /// Every block format, by its number in a GGUF file.
            pub const ALL: &[Block] = &[$(Block::$name,)*];

            /// The spelling of gguf.
            pub const fn name(self) -> &'static str {
                match self { $(Block::$name => stringify!($name),)* }
            }

            /// Its number in a GGUF file.
            pub const fn number(self) -> u32 {
                match self { $(Block::$name => $number,)* }
            }

            /// Elements of a block. It divides 256.
            pub const fn elements(self) -> usize {
                match self { $(Block::$name => $elements,)* }
            }

            /// Stored bytes of a block.
            pub const fn bytes(self) -> usize {
                match self { $(Block::$name => $bytes,)* }
            }
        }
    };
}

// From gguf-py's GGMLQuantizationType and GGML_QUANT_SIZES, except for Q8_1: gguf-py still has the 40 bytes of its first
// layout (float32 d and s), ggml's block_q8_1 has had 36 (float16) since 2023.
formats! {
    Q4_0     2  32  18
    Q4_1     3  32  20
    Q5_0     6  32  22
    Q5_1     7  32  24
    Q8_0     8  32  34
    Q8_1     9  32  36
    Q2_K    10 256  84
    Q3_K    11 256 110
    Q4_K    12 256 144
    Q5_K    13 256 176
    Q6_K    14 256 210
    Q8_K    15 256 292
    IQ2_XXS 16 256  66
    IQ2_XS  17 256  74
    IQ3_XXS 18 256  98
    IQ1_S   19 256  50
    IQ4_NL  20  32  18
    IQ3_S   21 256 110
    IQ2_S   22 256  82
    IQ4_XS  23 256 136
    IQ1_M   29 256  56
    TQ1_0   34 256  54
    TQ2_0   35 256  66
    MXFP4   39  32  17
    NVFP4   40  64  36
    Q1_0    41 128  18
}

impl Block {
    /// The format with this number in a GGUF file.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|block| block.number() == number)
    }
}
