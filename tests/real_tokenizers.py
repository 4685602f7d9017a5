"""The tokenizers of Llama 3 and Mistral as packages carry them, and what those packages make of a chat.

Run as a program with the folder of ``make tokenizers`` on PYTHONPATH:
``python -m tests.real_tokenizers OUT`` writes ``OUT/llama3`` and ``OUT/mistral`` in transformers'
layout, and ``OUT/expected.json`` with the token ids that the makers' own encoders give.
"""

import json
import sys
from pathlib import Path
from typing import Any

SYSTEM, USER, ANSWER = "Be kind to everyone.", "Do you agree with this?", "I agree, and so do 12 others."
# what the template of Llama 3.1 puts first
DATED = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"


def _llama(folder: Path) -> dict[str, list[int]]:
    import llama_models
    from llama_models.datatypes import RawMessage
    from llama_models.llama3.chat_format import ChatFormat
    from llama_models.llama3.tokenizer import Tokenizer
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    path = Path(llama_models.__file__).parent / "llama3" / "tokenizer.model"
    own = Tokenizer(path)
    special = sorted(own.special_tokens, key=lambda token: own.special_tokens[token])
    converted = TikTokenConverter(vocab_file=str(path), extra_special_tokens=special).converted()
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=converted, **names)
    tokenizer.backend_tokenizer.post_processor = _bos_first("<|begin_of_text|>", own.bos_id)
    tokenizer.save_pretrained(folder / "llama3")
    chat = ChatFormat(own)

    def ids(*turns: tuple[str, str]) -> list[int]:
        return list(chat.encode_dialog_prompt([RawMessage(role=role, content=text) for role, text in turns]).tokens)

    return {
        "user": ids(("user", USER)),
        "system": ids(("system", SYSTEM), ("user", USER)),
        "dated_user": ids(("system", DATED), ("user", USER)),
        "dated_system": ids(("system", DATED + SYSTEM), ("user", USER)),
        "answer": [*own.encode(ANSWER, bos=False, eos=False), own.eot_id],
    }


def _bos_first(token: str, token_id: int) -> Any:
    from tokenizers.processors import TemplateProcessing

    return TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, token_id)])


def _mistral(folder: Path) -> dict[str, list[int]]:
    import mistral_common
    from mistral_common.integrations.chat_templates.chat_templates import convert_tokenizer_to_chat_template
    from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.protocol.instruct.validator import ValidationMode
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from sentencepiece import SentencePieceProcessor
    from transformers import LlamaTokenizer

    path = Path(mistral_common.__file__).parent / "data" / "mistral_instruct_tokenizer_240323.model.v3"
    out = folder / "mistral"
    out.mkdir(parents=True)
    (out / "tokenizer.model").write_bytes(path.read_bytes())
    pieces = SentencePieceProcessor(model_file=str(path))
    control = [pieces.id_to_piece(i) for i in range(pieces.vocab_size()) if pieces.is_control(i)]
    tokenizer = LlamaTokenizer.from_pretrained(out, extra_special_tokens=control, legacy=False)
    tokenizer.chat_template = convert_tokenizer_to_chat_template(path)
    tokenizer.save_pretrained(out)
    (out / "tokenizer.model").unlink()
    own = MistralTokenizer.from_file(str(path), mode=ValidationMode.finetuning)
    chat = MistralTokenizer.from_file(str(path))

    def ids(*turns: Any) -> list[int]:
        return list(chat.encode_chat_completion(ChatCompletionRequest(messages=list(turns))).tokens)

    prompt = ids(UserMessage(content=USER))
    turns = [UserMessage(content=USER), AssistantMessage(content=ANSWER)]
    whole = list(own.encode_chat_completion(ChatCompletionRequest(messages=turns)).tokens)
    return {
        "user": prompt,
        "system": ids(SystemMessage(content=SYSTEM), UserMessage(content=USER)),
        "answer": whole[len(prompt) :],
    }


def main() -> None:
    """Write the tokenizers and the expected ids into the folder that the command line names."""
    folder = Path(sys.argv[1])
    expected = {"llama3": _llama(folder), "mistral": _mistral(folder)}
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
