"""Write oracles/tokenizers/: the token ids that llama.cpp gives for a hundred texts, and the small vocabularies of fixtures/tokenizers/.

Needs llama-cpp-python (`pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36` builds it in some ten minutes),
tokenizers and sentencepiece, which train the vocabularies; none of it is needed to build, test or run the product.

Example:
    python scripts/capture_tokenizers.py
    python scripts/capture_tokenizers.py --model models/gemma-3-270m-q4_k_m.gguf --out oracles/tokenizers/gemma3.json
    ORACLE_GEMMA3_GGUF=models/gemma-3-270m-q4_k_m.gguf cargo test --test tokenizer -- --nocapture trained
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures" / "tokenizers"
ORACLES = ROOT / "oracles" / "tokenizers"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# All that src/llama-vocab.cpp knows, but those of encoders.
PRE = """default gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling llama3 llama-v3 llama-bpe falcon3
falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4 glm5 minicpm5 qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez
solar-open grok-2 laguna ufakzeka qwen35 seed-coder bailingmoe bailingmoe2 llada-moe exaone-moe jais-2 starcoder refact command-r smollm
codeshell exaone minerva-7b mellum2 falcon chameleon deepseek-llm deepseek-coder deepseek-v3 hunyuan-dense joyai-llm hy_v4 spark2_5 afmoe
youtu tiny_aya cohere2moe tekken gpt-4o llama4 kanana2 talkie minimax-m2 kimi-k2 superbpe bloom poro-chat gpt3-finnish viking gemma4
sarvam-moe""".split()

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\n ", "\u00a0", "\u3000\u3000",
    "Hello", " Hello", "  Hello", "Hello ", "Hello  ", "Hello world", "Hello  world", "Hello   world", "HELLO World hELLO",
    "The quick brown fox jumps over the lazy dog.", "the fox\nthe dog", "the fox\n\nthe dog", "the fox \n the dog\n", "the\tfox\t\tthe dog",
    "line one\r\nline two\r\n\r\nline three", "  indented\n    more\n\n\n   end  ", "a \n\n b", "word\u2028next\u2029last", "a\u00a0b\u2003c\u3000d",
    "\x0b\x0c x \x1c y", "nul\x00byte \x7f del \x85 nel",
    "it's we're I'm you've he'll she'd can't", "IT'S WE'RE I'M YOU'VE HE'LL SHE'D CAN'T", "it' s 's 'S 'll'LL o'clock ''s", "d\u2019accord l\u2019\u00e9t\u00e9 it\u2019s",
    "'tis 'twas 'Street o'there", "x  12 \n34  5", "1", "12", "123", "1234", "12345", "1234567", "3.14159", "1,234,567.89", " 2024 2025", "x1y22z333w4444", "0x1F 1e-10 100%", "$5.00 \u20ac7 \u00a59 +1-2=3",
    "\u0661\u0662\u0663 \u0967\u0968\u0969 \u00bd\u00b2\u2163 \uff11\uff12\uff13",
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9 \u00c5ngstr\u00f6m \u00dcber \u00df", unicodedata.normalize("NFD", "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m"),
    "\u00c9T\u00c9 \u00e9t\u00e9 \u00c9t\u00e9 \u00e9T\u00c9 eT\u00e9", "camelCase PascalCase SCREAMING_SNAKE snake_case XMLHttpRequest iOS",
    "\u0130stanbul \u0131\u015f\u0131k \u01c5 \u02b0 \u017ft '\u017f",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u4e2d\u6587 English \u6df7\u5408123\u6587\u672c\u3002", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3000\u30ab\u30bf\u30ab\u30ca", "\u2f00\u3400\u9fff\uf900\U00020000\u4e00", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 \u3131\u314f \u1100\u1161",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u06d4 \u064e\u0651", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u0964", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u1019\u103c\u1014\u103a\u1019\u102c \u1781\u17d2\u1798\u17c2\u179a \u0ea5\u0eb2\u0ea7",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u043b\u043a\u0430", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u03ba\u03cc\u03c3\u03bc\u03b5 \u03a3\u03c3\u03c2", "\u0531\u0532\u0561\u0562 \u10d0\u10d1 \u13a0", "\u3105\u3106 \uff21\uff42 \uff01\uff1f \u201cquoted\u201d \u2014 \u2026",
    "\U0001f600", "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family", "\U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7\u2764\ufe0f", "e\u0301\u0302\u0323x \u0301 alone \u0915\u094d", "zero\u200bwidth\ufeffbom\u00adsoft",
    "\ue000 private \U0010ffff \u0378 unassigned",
    "def f(x):\n    return x ** 2  # square\n", "int main() {\n\tprintf(\"%d\\n\", x);\n\treturn 0;\n}", "for (i = 0; i < 10; ++i) { a[i] += b[i]; }", "<div class=\"a\">text</div><br/>", "https://example.com/a/b?c=d&e=f#g", "user@example.com ~/path/to/file.txt C:\\dir",
    "...", "!!!", "?!?!", "---", "___", "(((", "*** bold ***", "a.b,c;d:e!f?g", "\"quotes\" 'single' `ticks`", "^_^ :-) |x| a|b {c} [d] (e)", "!a #b $c %d &e *f @g", "end.\n\n", "end!\r\n next", " .\n/\n", "//\n// x/\n",
    "<s>", "<s> the", "the <s> fox", "</s>", "<s></s>", "<|im_start|>user\nHello<|im_end|>\n", "<|im_end|>  spaces after", "<|endoftext|>  <s>  <|tool|> \n x", "a<|tool|>b <|tool|> c", "[A][B] [A] [A][A][B]", "<ab>cde <ab> b>cde", "<|fim_prefix|>x<unk>y<unused0> z", "<0x41><0x0A> <0x", "<sentinel:12>IMGIMGABCZ x", "\u2581the\u2581\u2581fox \u2581", "  \u2581 ",
    "a" * 40, " " * 40, "ab" * 20, "\n" * 9, "1" * 10, "\u4e16" * 7, "na na na na na na na na", " x" * 12, "y" + " " * 18 + "z", " " * 9 + "\n" + " " * 5 + "q",
]  # fmt: skip

# What is trained on beside the texts: the neighbours that some expressions cut and others leave.
MORE = """'tis 'twas 'Street o'there 'tis 'twas 'Street o'there
the fox's 12 345 it's 1 2 x.y x, y; z: (a) [b] {c} == != <= >= -> :: ... !!! 'll 've 're 'd 'm 't 'S 'LL\n\n\n\t\tx  y   z    w .\n !\n /\n
9a a9 .a ,1 1. 1, -1 $1 %d #a _a a_ é1 1é 世界1 1世 世a a世 世。 。世 привет1 мир! مرحبا، हि न्दी の世 カタ 한국 a한 ŽA aŽ ÉT Té ét\u00a0a a\u3000b""".split("\n")


def bpe_parts(characters: bool) -> tuple[list[str], list[str]]:
    """Tokens and merges, trained on texts that nothing cuts: any cut shows in the ids."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    if characters:
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        alphabet = sorted(set("\u2581" + "".join(chr(c) for c in range(33, 127)) + "\n\u00e9\u4e16\u754c"))
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + (150 if characters else 900), min_frequency=2, initial_alphabet=alphabet, limit_alphabet=len(alphabet),
        max_token_length=6, show_progress=False,
    )
    pieces = [text[start : start + 12] for text in TEXTS + MORE for start in range(0, max(1, len(text) - 3), 2)]
    tokenizer.train_from_iterator(pieces, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].get), merges


def special(tokens: list[str], types: list[int]) -> None:
    """Tokens of every kind; two look like control tokens and are said to be ordinary, two pairs overlap."""
    for text, kind in [
        ("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", NORMAL), ("<|tool|>", USER_DEFINED),
        ("[A]", USER_DEFINED), ("[A][B]", USER_DEFINED), ("<ab>", USER_DEFINED), ("b>cde", USER_DEFINED), ("<|fim_prefix|>", NORMAL),
        ("<unused0>", UNUSED), ("<|endoftext|>", CONTROL),
    ]:  # fmt: skip
        if text not in tokens:
            tokens.append(text)
            types.append(kind)


def write_bpe(path: Path, characters: bool) -> None:
    """A file with a vocabulary and no tensor; the keys that vary are not in it."""
    tokens, merges = bpe_parts(characters)
    types = [NORMAL] * len(tokens)
    if characters:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        types += [BYTE] * 256
        tokens.append("\n" * 9)  # which no merges make
        types.append(NORMAL)
    else:
        tokens.append("\u0120brown")  # which no merges make
        types.append(NORMAL)
    special(tokens, types)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_spm(path: Path) -> None:
    """A SentencePiece vocabulary, its scores in groups of equals, in a llama of one layer that can be run."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in TEXTS + MORE for line in text.split("\n") if line.strip()]), model_writer=model,
        model_type="bpe", vocab_size=800, hard_vocab_limit=False, byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
        remove_extra_whitespaces=False, max_sentencepiece_length=6, minloglevel=2,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens, scores, types = [], [], []
    for id in range(trained.vocab_size()):
        kind = (
            UNKNOWN if trained.is_unknown(id) else CONTROL if trained.is_control(id) else BYTE if trained.is_byte(id)
            else UNUSED if trained.is_unused(id) else NORMAL
        )  # fmt: skip
        tokens.append(trained.id_to_piece(id))
        scores.append(float(np.trunc(trained.get_score(id) / 3) * 3))
        types.append(kind)
    special(tokens, types)
    scores += [-1000.0] * (len(tokens) - len(scores))
    hidden, heads, width = 8, 2, 16
    rng = np.random.default_rng(42)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    for name, shape in [
        ("token_embd", (len(tokens), hidden)), ("blk.0.attn_q", (hidden, hidden)), ("blk.0.attn_k", (hidden, hidden)),
        ("blk.0.attn_v", (hidden, hidden)), ("blk.0.attn_output", (hidden, hidden)), ("blk.0.ffn_gate", (width, hidden)),
        ("blk.0.ffn_up", (width, hidden)), ("blk.0.ffn_down", (hidden, width)),
    ]:  # fmt: skip
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float16))
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, dtype=np.float32))
    finish(writer)


def with_keys(path: Path, keys: dict[str, Any], folder: Path) -> Path:
    """The file with more keys in front of its own, as the tests add them."""
    data = path.read_bytes()
    added = b""
    for key, value in keys.items():
        added += len(key).to_bytes(8, "little") + key.encode()
        if isinstance(value, bool):
            added += (7).to_bytes(4, "little") + bytes([value])
        else:
            added += (8).to_bytes(4, "little") + len(value.encode()).to_bytes(8, "little") + value.encode()
    count = int.from_bytes(data[16:24], "little") + len(keys)
    out = folder / "with-keys.gguf"
    out.write_bytes(data[:16] + count.to_bytes(8, "little") + added + data[24:])
    return out


class LlamaCpp:
    """llama.cpp's tokenizer of a file."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self.lib = llama_cpp
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, None)
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp does not load its vocabulary")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def ids(self, text: str) -> list[int]:
        """With what the file says to add, and special tokens in the text as themselves."""
        data = text.encode()
        buffer = (self.lib.llama_token * (len(data) + 8))()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), buffer, len(buffer), True, True)
        assert count >= 0, text
        return list(buffer[:count])

    def close(self) -> None:
        self.lib.llama_model_free(self.model)


def capture(path: Path, variants: list[dict[str, Any]]) -> dict[str, Any]:
    """Per text the distinct answers, and which of them each variant of the file gives."""
    texts = [{"text": text, "ids": [], "which": []} for text in TEXTS]
    with tempfile.TemporaryDirectory() as folder:
        for keys in variants:
            engine = LlamaCpp(with_keys(path, keys, Path(folder)))
            for entry in texts:
                ids = engine.ids(entry["text"])
                if ids not in entry["ids"]:
                    entry["ids"].append(ids)
                entry["which"].append(entry["ids"].index(ids))
            engine.close()
    import llama_cpp

    return {"engine": f"llama.cpp in llama-cpp-python {llama_cpp.__version__}", "variants": variants, "texts": texts}


def write_json(path: Path, captured: dict[str, Any]) -> None:
    """One line per text."""
    lines = [json.dumps(entry, separators=(",", ":")) for entry in captured["texts"]]
    variants = [json.dumps(keys) for keys in captured["variants"]]
    path.write_text(
        f'{{"engine": {json.dumps(captured["engine"])},\n"variants": [\n' + ",\n".join(variants) + '\n],\n"texts": [\n' + ",\n".join(lines) + "\n]}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file of a trained model, instead of the fixtures")
    parser.add_argument("--out", type=Path, help="with --model: the JSON file to write")
    args = parser.parse_args()
    if (args.model is None) != (args.out is None):
        parser.error("--model and --out go together")
    if args.model is not None:
        write_json(args.out, capture(args.model, [{}]))
        return
    FIXTURES.mkdir(exist_ok=True)
    ORACLES.mkdir(exist_ok=True)
    pre, bos, eos = "tokenizer.ggml.pre", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"
    write_bpe(FIXTURES / "bytes.gguf", characters=False)
    write_bpe(FIXTURES / "characters.gguf", characters=True)
    write_spm(FIXTURES / "spm.gguf")
    byte_level = [{pre: name} for name in PRE if name not in ("gemma4", "sarvam-moe")]
    more = [{pre: "gpt-2", bos: True}, {pre: "llama3", bos: False, eos: True}, {pre: "default", "general.name": "Phi-3 Mini"}]
    write_json(ORACLES / "bytes.json", capture(FIXTURES / "bytes.gguf", byte_level + more))
    write_json(ORACLES / "characters.json", capture(FIXTURES / "characters.gguf", [{pre: "gemma4"}, {pre: "sarvam-moe"}, {pre: "gemma4", bos: False}]))
    prefix = "tokenizer.ggml.add_space_prefix"
    write_json(ORACLES / "spm.json", capture(FIXTURES / "spm.gguf", [{}, {prefix: False}, {bos: False, eos: True}, {prefix: True, "general.name": "phi3"}]))


if __name__ == "__main__":
    main()
