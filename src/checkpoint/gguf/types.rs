//! The storage types of GGML: their numbers, names and block sizes.

/// How a type lies: `elements` together take `bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Type {
    pub name: &'static str,
    pub elements: u64,
    pub bytes: u64,
}

const fn of(name: &'static str, elements: u64, bytes: u64) -> Option<Type> {
    Some(Type { name, elements, bytes })
}

/// The type of this number; source: `ggml_type` and `type_traits` of ggml, `GGML_QUANT_SIZES` of gguf-py.
pub(super) fn of_number(number: u32) -> Option<Type> {
    match number {
        0 => of("F32", 1, 4),
        1 => of("F16", 1, 2),
        2 => of("Q4_0", 32, 18),
        3 => of("Q4_1", 32, 20),
        6 => of("Q5_0", 32, 22),
        7 => of("Q5_1", 32, 24),
        8 => of("Q8_0", 32, 34),
        9 => of("Q8_1", 32, 36),
        10 => of("Q2_K", 256, 84),
        11 => of("Q3_K", 256, 110),
        12 => of("Q4_K", 256, 144),
        13 => of("Q5_K", 256, 176),
        14 => of("Q6_K", 256, 210),
        15 => of("Q8_K", 256, 292),
        16 => of("IQ2_XXS", 256, 66),
        17 => of("IQ2_XS", 256, 74),
        18 => of("IQ3_XXS", 256, 98),
        19 => of("IQ1_S", 256, 50),
        20 => of("IQ4_NL", 32, 18),
        21 => of("IQ3_S", 256, 110),
        22 => of("IQ2_S", 256, 82),
        23 => of("IQ4_XS", 256, 136),
        24 => of("I8", 1, 1),
        25 => of("I16", 1, 2),
        26 => of("I32", 1, 4),
        27 => of("I64", 1, 8),
        28 => of("F64", 1, 8),
        29 => of("IQ1_M", 256, 56),
        30 => of("BF16", 1, 2),
        34 => of("TQ1_0", 256, 54),
        35 => of("TQ2_0", 256, 66),
        39 => of("MXFP4", 32, 17),
        40 => of("NVFP4", 64, 36),
        41 => of("Q1_0", 128, 18),
        _ => None,
    }
}

/// Why a number that once was a type has none any more.
pub(super) fn withdrawn(number: u32) -> Option<&'static str> {
    match number {
        4 | 5 => Some("Q4_2 and Q4_3 were withdrawn in 2023"),
        31..=33 => Some("Q4_0_4_4, Q4_0_4_8 and Q4_0_8_8 were withdrawn in 2024: convert from the original again"),
        36..=38 => {
            Some("IQ4_NL_4_4, IQ4_NL_4_8 and IQ4_NL_8_8 were withdrawn in 2024: convert from the original again")
        }
        _ => None,
    }
}
