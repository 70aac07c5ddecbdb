//! How byte-level BPE cuts a text before it merges: what `tokenizer.ggml.pre` stands for.
//!
//! The expressions are those of the models' own tokenizers as llama.cpp (src/llama-vocab.cpp, src/unicode.cpp) applies
//! them. Where it simplifies one (a class of upper-case letters becomes all letters, say), so does the table here: who
//! compares with llama.cpp needs its tokens.

/// How a text is cut, and what goes with it.
pub(super) struct Pre {
    names: &'static [&'static str],
    /// Each cuts every piece that the one before it left: its matches and what lies between them are pieces.
    pub splits: &'static [&'static str],
    /// A piece that is a token is not merged.
    pub ignore_merges: bool,
    /// Whether BOS comes first where the file doesn't say.
    pub add_bos: bool,
    /// Whether it comes first even if the file says otherwise.
    pub always_bos: bool,
    /// Tokens are of characters and spaces are U+2581, as in SentencePiece; a character without a token is told by its
    /// bytes.
    pub characters: bool,
    /// A run of newlines that is a token is not merged.
    pub whole_newlines: bool,
}

/// The entry of that name.
pub(super) fn named(name: &str) -> Option<&'static Pre> {
    TABLE.iter().find(|pre| pre.names.contains(&name))
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|pre| pre.names).copied()
}

// Of English, in any case; case folding would take U+017F for an s.
macro_rules! contractions {
    () => {
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

// GPT-2's.
macro_rules! gpt2 {
    () => {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    };
}

// Of tiktoken's cl100k, but for the numbers.
macro_rules! words {
    ($numbers:literal) => {
        concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

// Of DeepSeek-V3: a sign and a word, words with their marks, signs.
macro_rules! signs_and_words {
    ($signs:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"##,
            $signs,
            r"|\s+(?!\S)|\s+"
        )
    };
}

// Of tiktoken's o200k: letters but those of the lower case, then letters but those of the upper case; an end.
macro_rules! cased_words {
    ($end:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*",
            $end
        )
    };
}

macro_rules! signs_and_space {
    () => {
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

macro_rules! ideographs_and_kana {
    () => {
        r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
    };
}

macro_rules! han {
    () => {
        r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
    };
}

// DeepSeek's letters that have cases.
macro_rules! cased_letters {
    () => {
        concat!(
            r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}",
            r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}",
            r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}",
            r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}",
            r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}",
            r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}",
            r"\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}",
            r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}",
            r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}",
            r"\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}",
            r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}",
            r"\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}",
            r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}",
            r"\x{1E900}-\x{1E943}"
        )
    };
}

// Behind each digit that whole threes of digits follow. llama.cpp doesn't cut before the first.
const THREES: &str = r"(?<=\p{N})(?=(?:\p{N}{3})*(?!\p{N}))";
const NO_CJK_SIGNS: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+";
// Without the spaces in between, of which U+3000 is the last: llama.cpp's are all alike.
const CJK: &str = r"[[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]&&\S]+";
const LINES: &str = r"[^\n]+|\n+";

const BYTES: Pre = Pre {
    names: &[],
    splits: &[],
    ignore_merges: false,
    add_bos: false,
    always_bos: false,
    characters: false,
    whole_newlines: false,
};

const TABLE: &[Pre] = &[
    Pre { names: &["default"], splits: &[r"[\p{P}\$\+<=>\^~\|]+", gpt2!(), r"\p{N}+", "[0-9][0-9][0-9]"], ..BYTES },
    Pre {
        names: &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        splits: &[gpt2!()],
        ..BYTES
    },
    Pre {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        splits: &[words!(r"\p{N}{1,3}")],
        ignore_merges: true,
        add_bos: true,
        ..BYTES
    },
    Pre { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], splits: &[words!(r"\p{N}{1,3}")], ..BYTES },
    Pre { names: &["glm4", "glm5"], splits: &[words!(r"\p{N}{1,3}")], ignore_merges: true, ..BYTES },
    Pre { names: &["minicpm5"], splits: &[r"\p{N}{1,3}", words!(r"\p{N}+")], ignore_merges: true, ..BYTES },
    Pre {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "stablelm2",
            "hunyuan",
            "megrez",
            "solar-open",
            "grok-2",
        ],
        splits: &[words!(r"\p{N}")],
        ..BYTES
    },
    Pre { names: &["laguna"], splits: &[LINES, words!(r"\p{N}")], ..BYTES },
    Pre {
        names: &["ufakzeka"],
        splits: &[r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
        ..BYTES
    },
    Pre {
        names: &["qwen35"],
        splits: &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        ..BYTES
    },
    Pre {
        names: &["seed-coder"],
        splits: &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        ..BYTES
    },
    Pre {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        splits: &[
            "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\
             \\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
        ],
        ..BYTES
    },
    Pre {
        names: &["exaone-moe"],
        splits: &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        )],
        ..BYTES
    },
    Pre {
        names: &["jais-2"],
        splits: &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|",
            r"\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s"
        )],
        ..BYTES
    },
    Pre {
        names: &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        splits: &[r"\p{N}", gpt2!()],
        ..BYTES
    },
    Pre { names: &["falcon"], splits: &[r"[\p{P}\$\+<=>\^~\|`]+", gpt2!(), "[0-9][0-9][0-9]"], ..BYTES },
    Pre {
        names: &["chameleon"],
        splits: &[
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            gpt2!(),
        ],
        add_bos: true,
        ..BYTES
    },
    Pre {
        names: &["deepseek-llm"],
        splits: &[
            r"[\r\n]",
            concat!(r"\s?[", cased_letters!(), "]+"),
            r"\s?[[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]&&\S]+",
            r"\s+$",
            CJK,
            r"\p{N}+",
        ],
        ..BYTES
    },
    Pre { names: &["deepseek-coder"], splits: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"], ..BYTES },
    Pre {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        splits: &[r"\p{N}{1,3}", ideographs_and_kana!(), signs_and_words!(r"[\r\n]*|\s*[\r\n]+")],
        ..BYTES
    },
    Pre {
        names: &["spark2_5"],
        splits: &[r"\p{N}{1,3}", ideographs_and_kana!(), signs_and_words!(r"|[\r\n]"), r"\p{N}"],
        ..BYTES
    },
    Pre {
        names: &["afmoe"],
        splits: &[
            THREES,
            concat!(
                r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}",
                r"\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}",
                r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
            ),
            signs_and_words!(r"[\r\n]*|\s*[\r\n]+"),
        ],
        ..BYTES
    },
    Pre {
        names: &["youtu"],
        splits: &[
            concat!(
                r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}",
                r"\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|",
                ideographs_and_kana!()
            ),
            concat!(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", contractions!(), r"?|\p{N}", signs_and_space!()),
        ],
        ignore_merges: true,
        ..BYTES
    },
    Pre {
        names: &["tiny_aya", "cohere2moe"],
        splits: &[
            THREES,
            concat!(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", contractions!(), r"?|\p{N}{1,3}", signs_and_space!()),
        ],
        ..BYTES
    },
    Pre {
        names: &["tekken"],
        splits: &[concat!(cased_words!(""), r"|\p{N}", signs_and_space!())],
        ignore_merges: true,
        add_bos: true,
        ..BYTES
    },
    Pre {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        splits: &[concat!(cased_words!(concat!(contractions!(), "?")), r"|\p{N}{1,3}", signs_and_space!())],
        ..BYTES
    },
    Pre {
        names: &["kimi-k2"],
        splits: &[concat!(
            "[",
            han!(),
            r"]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^",
            han!(),
            "]]+",
            contractions!(),
            r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        ..BYTES
    },
    Pre { names: &["superbpe"], splits: &[r"\p{N}+", "(?=(?:[0-9]{3})+(?![0-9]))"], ..BYTES },
    Pre { names: &["bloom", "poro-chat", "gpt3-finnish"], splits: &[NO_CJK_SIGNS], ..BYTES },
    Pre { names: &["viking"], splits: &[NO_CJK_SIGNS, r"\p{N}"], ..BYTES },
    Pre { names: &["gemma4"], splits: &[LINES], always_bos: true, characters: true, whole_newlines: true, ..BYTES },
    Pre { names: &["sarvam-moe"], splits: &[LINES], characters: true, ..BYTES },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_given_once_and_every_expression_is_one() {
        let mut seen = BTreeSet::new();
        assert!(names().all(|name| seen.insert(name)));
        for split in TABLE.iter().flat_map(|pre| pre.splits) {
            assert!(fancy_regex::Regex::new(split).is_ok(), "{split}");
        }
        assert!(named("wordy").is_none());
    }
}
