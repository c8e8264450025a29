"""Model: takes prompts, gives streams of tokens and their results."""
from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from gomlx import _gomlx, abilities
from gomlx._base import arguments, notebook
from gomlx._generation import chat, constraints, prefixes, scoring
from gomlx._generation import tool_choice as tool_choices
from gomlx._generation.adapters import Adaptable, AdapterChoice
from gomlx._generation.inspection import Inspectable, engine_edits
from gomlx._generation.options import (
    BATCH,
    CHAT,
    CLASSIFY,
    CONSTRAINTS,
    GENERATE,
    WARM,
    ChatOptions,
    GenerateOptions,
    GenerationOptions,
    shown_with,
)
from gomlx._generation.prompt_cache import PromptCache, common_length, packed
from gomlx._generation.sampling import Sampling
from gomlx._generation.scoring import Classified, Score
from gomlx._generation.streams import BatchStream, Generation, Result, Slots, TokenStream
from gomlx.parsing import HEADER, Parser, ThinkingBudget, TokenReader, closing_of, detect
from gomlx.probes import Prober

if TYPE_CHECKING:
    from typing import Unpack

    from gomlx._generation.options import BatchOptions, Message, SamplingFields, Several, Templating
    from gomlx._generation.scheduler import Scheduler
    from gomlx._generation.state_bundle import StateBundle
    from gomlx._generation.tokenizer import Tokenizer
    from gomlx._gomlx import Ids
    from gomlx._training.adapter import Adapter
    from gomlx._training.config import LoRAConfig

__all__ = ["BatchStream", "Model", "Result", "TokenStream"]
log = logging.getLogger("gomlx")


MAX_BATCH = 1024                # streams that are decoded at a time
MAX_SAMPLES = 1 << 20           # of one prompt


class Info(dict[str, Any]):
    """A dict that notebooks show as a table."""

    def _repr_html_(self) -> str:
        return notebook.info(self)


class Model(Adaptable, Inspectable):
    """A loaded model; gomlx.load makes it. Any number of threads may use it, each stream in one thread at a time.

    info        what is known about it, as a dict; "stop_ids" names each stop id with where it comes from,
                "sampling_ignored" what its files say about generating that is not applied
    sampling    its own Sampling: what generate() does unless told otherwise
    tokenizer   its Tokenizer
    adapter     the adapter, or adapters with weights, that generate() uses unless told otherwise; None: none
    prompt_cache    its PromptCache: prompts that begin like an earlier one take that one's keys; .stats, .clear()
    error       the exception that ended the generation that began last; None while there is none. After a timeout it is
                TimeoutError, after cancel() gomlx.Cancelled, which is never raised. A batch sets it to the last one of
                its prompts
    """
    error: Exception | None = None
    info: dict[str, Any]
    sampling: Sampling
    tokenizer: Tokenizer
    prompt_cache: PromptCache
    _slots = Slots()

    def __init__(self, engine: _gomlx.Model, tokenizer: Tokenizer, info: dict[str, Any], sampling: dict[str, Any],
                 stops: Mapping[int, Any], parallel: int | None = None,
                 prompt_cache: bool | PromptCache = True) -> None:
        self._engine = engine
        engine.tokenizer = tokenizer
        self.prompt_cache = prompt_cache if isinstance(prompt_cache, PromptCache) else \
            PromptCache() if prompt_cache else PromptCache(entries=0)
        self._slots = Slots(parallel)
        self._views = constraints.Views()
        self.sampling = Sampling(**sampling)
        self._stop_ids = [i for i in sorted(stops) if i < engine.vocab_size]
        self.tokenizer = tokenizer
        self.info = Info(info | {
            "sampling": sampling or {"temperature": 0.0},
            "stop_ids": [{"id": i, "text": tokenizer.id_to_token(i), "sources": stops[i]} for i in sorted(stops)],
            "chat_template": tokenizer.chat_template is not None,
        })

    @overload
    def generate(self, prompt: str | Ids, *, n: Literal[1] = 1, options: GenerationOptions | None = None,
                 **changes: Unpack[GenerateOptions]) -> TokenStream: ...
    @overload
    def generate(self, prompt: str | Ids, *, n: Several, options: GenerationOptions | None = None,
                 **changes: Unpack[GenerateOptions]) -> BatchStream: ...
    @overload
    def generate(self, prompt: str | Ids, *, n: int, options: GenerationOptions | None = None,
                 **changes: Unpack[GenerateOptions]) -> TokenStream | BatchStream: ...
    @shown_with(GenerateOptions)
    def generate(self, prompt: str | Ids, *, n: int = 1, options: GenerationOptions | None = None,
                 **changes: Unpack[GenerateOptions]) -> TokenStream | BatchStream:
        """Continues prompt, a text or token ids; returns a TokenStream.

        max_tokens          None goes on to a stop or to the end of the context; 0 computes the prompt, for the session
        min_tokens          stop ids cannot come before this many tokens
        sampling            a Sampling instead of the model's own (model.sampling)
        temperature=..., top_p=..., top_k=..., min_p=..., repetition_penalty=..., ...
                            any field of Sampling by name changes that field; None changes nothing
        seed                0 to 2**64 - 1; None draws one and leaves it in the result
        stop                a text, or several, that end the stream and are cut from it; the text of a special token is
                            that token's id. Where several are possible, the one that is complete first
        stop_ids            ids that end the stream, besides those of model.info["stop_ids"]
        ignore_eos          the model's own stop ids end nothing
        top_logprobs        how many of the likeliest tokens are reported with each token, up to 256
        prompt_logprobs     the log probability of each token of the prompt, and so many of the likeliest in its place,
                            up to 256, are in the result, to the bits of score(); the prompt is then computed whole,
                            whatever a session or the prompt cache has of it. None: not
        logits_processors   callables f(ids, logits), called for each token before any bias, penalty or sampler: ids is
                            an int32 memoryview of prompt and output, logits a writable float32 memoryview [vocab] that
                            numpy.asarray takes without a copy, valid during the call. What f returns, when it is not
                            None, replaces them: float32 [vocab]. An exception ends the stream and is raised there
        session             from model.session(): the prompt goes on from its ids, whose keys are not computed again,
                            and it goes on with prompt and output. An empty prompt goes on from where it is. A prompt
                            must begin as the session does, in ids or in text, or be a beginning of it, which goes back
                            there: any other is KvStateNotAvailable
        append              the prompt comes after what the session has: a text gets no BOS, and the ids before it stay
        reset               what the session has and the prompt has not is forgotten, be it all
        parser              what takes reasoning and calls of tools out of the text, a name of gomlx.parsing.FORMATS or
                            a Parser; None leaves all of it in the answer
        thinking_budget     after this many tokens of reasoning, as the parser finds it, the model has to end it and to
                            answer
        timeout             seconds from this call on, waiting for a slot included; then finish_reason is "timeout"
        prefill             "batched" ("auto") computes the prompt in passes of many tokens, "token" token by token, to
                            the same bits; "validate" first compares the logits after the prompt with those of the
                            exact path (validate()) and leaves the largest difference in the result
        n                   how many continuations of the prompt, computed once: a BatchStream. Number i has the
                            seed seed + i
        options             GenerationOptions made before; what is given by name besides changes them
        steer               gomlx.Steer and gomlx.Patch: activations changed on the way, in prompt and output. Such a
                            generation takes nothing from its session and leaves it empty
        probe               a callable, or a Probe of one: told what goes on in each step (gomlx.probes)
        profile             count and time what the engine does, for result.profile (gomlx.profiling)
        schema              the answer is JSON that is valid under this JSON schema, or has this type: a pydantic model,
                            a dataclass, a TypedDict, Literal, list[...]; result.parsed is the object
                            (docs/structured-output.md). Or one of
        regex, grammar, choice
                            a pattern that matches all of it, a grammar in Lark's notation or GBNF, some texts; or
        constraint          a gomlx.Constraint made before
        whitespace          of a schema's JSON: "default" as json.dumps writes it, "compact" none, "any"
        enforce             "strict": gomlx.UnsupportedSchema for what cannot be enforced; "relaxed": it is checked at
                            the end, result.violation
        adapter             the name of one that load_adapter() gave, or {name: weight} of several, which add up; {} is
                            none, None the model's own choice (model.adapter). A session goes on with the adapters that
                            it was begun with, else KvStateNotAvailable
        """
        arguments.known("generate", changes, GENERATE)
        self.error = None
        try:
            return self._start(prompt, arguments.integer("n", n, 1, MAX_SAMPLES), options_of(options, changes))
        except Exception as error:
            self.error = error
            raise

    def _start(self, prompt, n, options):
        deadline = deadline_of(options.timeout)
        if n != 1:
            return self._samples(prompt, n, options, deadline)
        return TokenStream(self._open(prompt, options, deadline), slots=self._slots, deadline=deadline,
                           on_error=self._set_error)

    def _set_error(self, error):
        self.error = error

    def _open(self, prompt, options, deadline, *, ids=None, begin=None, checkpoint=0):
        """A Generation of one prompt; it starts when its first token is read. ids: the prompt's, where they are known;
        begin: a session with a beginning of them, which becomes the generation's own; checkpoint: how many of them
        others begin with, so that these may go on from there."""
        shares = self._shares(options.adapter)
        if options.session is not None:
            self._check_session(options.session, shares, options.reset)
        if ids is None:
            ids = self._ids_from(prompt, options.session, options.append, options.reset)
        sampling = options.sampling_of(self.sampling).engine_options(self.tokenizer)
        parser = self._parser_of(prompt, ids, options)
        processors = [*options.logits_processors]
        if options.thinking_budget is not None:
            processors.append(self._thinking_budget(parser, options.thinking_budget, constraints.of(options)))
        seed = draw_seed() if options.seed is None else options.seed
        timeout = 0 if deadline is None else max(deadline - time.monotonic(), 1e-9)
        edits = engine_edits(self, options.steer, len(ids))
        prefill, difference = options.prefill, None
        if prefill == "validate":
            prefill, difference = "auto", self.validate(ids, (), options.steer, options.adapter).max_difference
        prober = None
        if options.probe is not None:
            prober = Prober(self._engine, self.info["n_layers"], options.probe, len(ids))
            processors.insert(0, prober)
        follower = self._follower(options, parser, len(ids))
        own = None                      # a prompt that was steered is not kept for later ones
        if options.session is None:
            fresh = edits or options.prompt_logprobs is not None
            own = begin or (self._engine.new_session() if fresh else None)
            if own is None:
                own, known = self._fresh_session(ids, shares)
                checkpoint = max(checkpoint, known)
        try:
            stream = _gomlx.stream(
                options.session or own, self.tokenizer, ids, seed=seed, min_tokens=options.min_tokens,
                max_tokens=-1 if options.max_tokens is None else options.max_tokens, stop_ids=self._ends_of(options),
                stop_texts=options.stop, top_logprobs=options.top_logprobs, processors=processors, timeout=timeout,
                prefill=prefill, edits=edits, activations=prober.activations if prober else (), profile=options.profile,
                adapters=shares, mask=follower, checkpoint=checkpoint,
                prompt_logprobs=-1 if options.prompt_logprobs is None else options.prompt_logprobs, **sampling)
        except BaseException:
            if own is not None:
                own.close()
            raise
        if prober is not None:
            prober.stream, prober.session = stream, options.session or own
        keep = None if edits else partial(self._keep_session, ids)
        reader = TokenReader(parser, self.tokenizer, ids) if parser is not None else None
        return Generation(stream, seed, own, options.stop, reader, keep, prober, difference, follower)

    def _follower(self, options, parser, n_prompt):
        """What holds a stream to the constraint of its options; None: they have none."""
        constraint = constraints.of(options)
        if constraint is None:
            return None
        view = self._views.of(self.tokenizer, self.vocab_size, self._ends_of(options))
        lead = constraints.Lead.of(parser) if parser is not None else None
        return constraints.Follower(constraint, view, n_prompt, lead)

    def ready_for_constraints(self) -> None:
        """Makes now what the first answer that is held to something would wait for, once per model: the matcher's view
        of the vocabulary, some tenths of a second. Nothing, where the matcher is not installed."""
        ends = self._ends_of(GenerationOptions())
        if ends and constraints.is_installed():
            self._views.of(self.tokenizer, self.vocab_size, ends)

    def _parser_of(self, prompt, ids, options):
        if not isinstance(options.parser, str):
            return options.parser
        whole = isinstance(prompt, str) and prompt and not options.append
        return Parser(options.parser, prompt=prompt if whole else self.tokenizer.decode(ids))

    def _ends_of(self, options):
        """The ids that end a stream: the model's own, the caller's, and stop texts that are special tokens."""
        return [*(() if options.ignore_eos else self._stop_ids), *options.stop_ids, *self._special_ids(options.stop)]

    def _ids_from(self, prompt, session, append, reset):
        """The ids of a prompt, including those that the session holds."""
        if session is None:
            return self._prompt_ids(prompt)
        if session.model is not self._engine:
            raise ValueError("the session belongs to another model")
        prompt = prompt if isinstance(prompt, str) else self._prompt_ids(prompt)
        held = [] if reset else session.ids
        if held and (append or len(prompt) == 0):
            return held + (self.tokenizer.encode_after(prompt) if isinstance(prompt, str) else prompt)
        ids = self._prompt_ids(prompt)
        if not ids:
            raise _gomlx.KvStateNotAvailable("the prompt is empty, and so is the session: "
                                             "there is no token to go on from")
        shared = common_length(packed(held), packed(ids))
        if shared < min(len(held), len(ids)) and not (isinstance(prompt, str) and self._begin_alike(held, prompt)):
            here, there = (repr(self.tokenizer.decode(one[shared:shared + 8], False)) for one in (held, ids))
            raise _gomlx.KvStateNotAvailable(
                f"the prompt does not begin as the session does: after {shared} tokens in common the session goes on "
                f"with "
                f"{here}, the prompt with {there}; append=True adds the prompt to what the session has, reset=True "
                "forgets that")
        return ids

    def _begin_alike(self, ids, text):
        """Whether a session's text is the beginning of the other text or the reverse, whatever their tokens are."""
        start = self.tokenizer.encode_prompt("")
        held = self.tokenizer.decode(ids[len(start):] if ids[:len(start)] == start else ids, False).rstrip("\ufffd")
        return text.startswith(held) or held.startswith(text)

    def _fresh_session(self, ids, shares):
        """A session from the prompt cache, or an empty one, and how many of the ids another prompt begins with."""
        uses = self._uses(shares)
        found, alike = self.prompt_cache.take(ids, uses) if uses is not None else (None, 0)
        return found or self._engine.new_session(), alike

    def _keep_session(self, prompt, session, output):
        if self._engine.closed:
            session.close()
        else:
            self.prompt_cache.put(session, [*prompt, *output])

    def warm_prompt_cache(self, prefix: str | Ids | None = None, *, messages: Sequence[Message] | None = None,
                          tools: Sequence[dict[str, Any]] | None = None, adapter: AdapterChoice = None,
                          **rendering: Unpack[Templating]) -> int:
        """Computes the keys of what prompts will begin with - a system prompt, schemas of tools, a document - and keeps
        them until prompt_cache.clear(): prompts that begin alike compute only what is new, to the same bits. Returns
        the number of tokens that are kept.

        prefix      a text that generate()'s prompts will begin with, or token ids, which are taken as they are
        messages    or what the messages of chat() will begin with, say the system's; with
        tools       as for chat(), also without messages
        adapter     as for generate(): keys are of use to prompts with the same
        rendering   the other options of chat() that its template sees: template_args, enable_thinking, chat_format

        Of a text those tokens are kept that no continuation changes: a space at its end belongs to the next word, and
        its last word may be the beginning of a longer one. Where none are left, a warning in the log says so, and
        nothing is kept."""
        arguments.known("warm_prompt_cache", rendering, WARM)
        if (prefix is not None) == (messages is not None or tools is not None):
            raise ValueError("warm_prompt_cache: expected either a prefix, or messages, tools or both")
        if prefix is None:
            render = partial(self._text_of_messages, tools=tools, **rendering)
            ids = prefixes.of_messages(self.tokenizer, render, [] if messages is None else messages)
            what = "conversation"
        else:
            if rendering:
                raise TypeError(f"warm_prompt_cache: {', '.join(rendering)}: only with messages or tools")
            ids, what = (prefixes.of_text(self.tokenizer, prefix), "text") if isinstance(prefix, str) else \
                (self._prompt_ids(prefix, "prefix"), "list of ids")
        if len(ids) <= (len(self.tokenizer.encode_prompt("")) if what != "list of ids" else 0):
            log.warning("warm_prompt_cache: the %s leaves no token that is certain to begin later prompts: nothing is "
                        "kept",
                        what)
            return 0
        session = self._fresh_session(ids, self._shares(adapter))[0]
        try:
            self.generate(ids, max_tokens=0, session=session, reset=True, adapter=adapter).read()
        except BaseException:
            session.close()
            raise
        self.prompt_cache.put(session, ids, pinned=True)
        return len(ids)

    def bundle(self, session: _gomlx.Session, *, prompt: str = "", sampling: Sampling | None = None,
               meta: dict[str, Any] | None = None) -> StateBundle:
        """A session with what is needed to continue it elsewhere: StateBundle.save(path), load(path), restore(model).
        prompt, sampling, meta: what the bundle shall tell of where the session comes from."""
        from gomlx._generation.state_bundle import make  # few programs do, and it imports tempfile and platform
        return make(self, session, prompt, sampling, meta)

    def _samples(self, prompt, n, options, deadline):
        session, seed = options.session, draw_seed() if options.seed is None else options.seed
        shares = self._shares(options.adapter)
        if session is not None:
            self._check_session(session, shares, options.reset)
        ids = self._ids_from(prompt, session, options.append, options.reset)
        decoder = self._engine.new_decoder()
        base = session if session is not None else self._fresh_session(ids, shares)[0]
        first = ids if session is not None else ids[:-1]        # the caller's session then holds the prompt

        def prefill_shared():
            alone = GenerationOptions(session=base, reset=True, max_tokens=0, adapter=options.adapter)
            return self._open(first, alone, deadline)

        def sample(i):
            fork = base.fork()
            try:
                made = self._open(ids, options.replace(
                    session=fork, append=False, reset=True, seed=(seed + i) % 2**64,
                    parser=self._parser_of(prompt, ids, options.replace(parser=copy.deepcopy(options.parser)))),
                                  deadline)
            except BaseException:
                fork.close()
                raise
            made.session = fork
            return made

        return BatchStream(decoder, [partial(sample, i) for i in range(n)], min(n, MAX_BATCH),
                           lead=prefill_shared if first else None, slots=self._slots, deadline=deadline,
                           on_error=self._set_error, on_close=base.close if session is None else lambda: None)

    def generate_batch(self, prompts: Sequence[str | Ids | Sequence[Message]], *,
                       options: Sequence[Mapping[str, Any] | GenerationOptions | None] | None = None,
                       batch_size: int = 16,
                       timeout: float | None = None, **common: Unpack[BatchOptions]) -> BatchStream:
        """Continues several prompts together, each to the bits that generate() would give it alone; the weights are
        read once for all. Returns a BatchStream.

        prompts     texts, sequences of token ids, or sequences of messages, which go through chat()'s template
        options     of each prompt its own options of generate() (for messages those of chat()), a dict or
        GenerationOptions,
                    over the common ones
        batch_size  prompts that are decoded at a time, up to 1024; as one ends the next begins. Each needs memory for
                    its own KV cache
        timeout     seconds from this call on for all of it
        common      options of generate() for every prompt

        A prompt that cannot be generated from has the exception in its result's `error`; the others go on.
        """
        arguments.known("generate_batch", common, BATCH)
        if isinstance(prompts, (str, bytes, Mapping)):
            raise TypeError(f"prompts: expected several prompts, got one {type(prompts).__name__}")
        prompts = arguments.sequence("prompts", prompts, "several prompts")
        own = arguments.sequence("options", options, "a dict for each prompt") if options is not None else \
            [None] * len(prompts)
        if len(own) != len(prompts):
            raise ValueError(f"options: {len(own)} for {len(prompts)} prompts")
        own = [{} if one is None else one.given() if isinstance(one, GenerationOptions) else
               arguments.mapping(f"options[{i}]", one) for i, one in enumerate(own)]
        batch_size = arguments.integer("batch_size", batch_size, 1, MAX_BATCH)
        deadline = deadline_of(timeout)

        def member(i):
            prompt, asked = prompts[i], common | own[i]
            if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
                prompt, made = self._rendered(prompt, **asked)
            else:
                made = GenerationOptions(**asked)
            alone = (deadline, deadline_of(made.timeout))
            return self._open(prompt, made, min((one for one in alone if one is not None), default=None))

        return BatchStream(self._engine.new_decoder(), [partial(member, i) for i in range(len(prompts))], batch_size,
                           slots=self._slots, deadline=deadline, on_error=self._set_error)

    def scheduler(self, *, max_streams: int = 16, kv_bytes: int | None = None, queue: int = 256,
                  gap_ms: float | None = None) -> Scheduler:
        """A gomlx.Scheduler of this model: requests of any thread or task are computed together, each to the tokens
        that it gets alone.

        max_streams     requests that are computed at a time, 1 to 1024; others wait
        kv_bytes        bytes of keys, values and states of all of these; what they share counts once. None: no bound
        queue           requests that may wait; another one raises gomlx.QueueFull
        gap_ms          milliseconds that others' prompts may keep a stream's next token waiting; None: no bound
        """
        from gomlx._generation.scheduler import Scheduler  # imports asyncio, which few programs need
        return Scheduler(self, max_streams=max_streams, kv_bytes=kv_bytes, queue=queue, gap_ms=gap_ms)

    def _special_ids(self, texts):
        """The ids of those texts that are special tokens: these have no text in the output."""
        ids = [self.tokenizer.token_to_id(text) for text in texts]
        return [i for i in ids if i is not None and i < self.vocab_size and self.tokenizer.is_special(i)]

    @overload
    def chat(self, messages: str | Sequence[Message], *, n: Literal[1] = 1,
             options: GenerationOptions | None = None, **changes: Unpack[ChatOptions]) -> TokenStream: ...
    @overload
    def chat(self, messages: str | Sequence[Message], *, n: Several, options: GenerationOptions | None = None,
             **changes: Unpack[ChatOptions]) -> BatchStream: ...
    @overload
    def chat(self, messages: str | Sequence[Message], *, n: int, options: GenerationOptions | None = None,
             **changes: Unpack[ChatOptions]) -> TokenStream | BatchStream: ...
    @shown_with(ChatOptions)
    def chat(self, messages: str | Sequence[Message], *, n: int = 1, tools: Sequence[dict[str, Any]] | None = None,
             tool_choice: str | Mapping[str, Any] | None = None, parallel_tool_calls: bool = True,
             add_generation_prompt: bool = True, template_args: dict[str, Any] | None = None,
             enable_thinking: bool | None = None, chat_format: str | None = None,
             parser: str | Parser | None = "auto", options: GenerationOptions | None = None,
             **changes: Unpack[GenerateOptions]) -> TokenStream | BatchStream:
        """Answers messages, a list of {"role": ..., "content": ...}, through the model's own chat template. A text is
        one message of the user.

        template_args       further variables for the template
        enable_thinking     the template's switch for reasoning; None is its own default, and a template without one
                            raises ValueError
        thinking_budget     as in generate(); ValueError when the template knows no reasoning
        tools               as in OpenAI's API; ValueError when the template takes none
        tool_choice         holds the answer to the tools (docs/structured-output.md): "none" calls none, "auto" may,
                            with arguments of the tool's schema, "required" does, a tool's name or OpenAI's dict calls
                            that one. None: nothing is held, unless a tool has "strict": true, or with
        parallel_tool_calls False: at most one call
        chat_format         a built-in format (chat_formats.py) instead of the model's template
        parser              "auto" takes reasoning and calls of tools out of the text as the template writes them; else
        as
                            in generate()
        session             holds the conversation: messages are all of it, and what the session has of them is not
        computed
                            again. What they have not (an answer that is told otherwise, reasoning that the template
                            leaves out) is forgotten; where not even the first turn is the session's, they are another
                            conversation, KvStateNotAvailable without reset=True
        append              messages are the new ones alone: their turns come after the session's last answer
        options             GenerationOptions made before
        changes             the other options of generate()
        """
        arguments.known("chat", changes, CHAT)
        if parser == "auto" and options is not None and options.parser is not None:
            parser = options.parser
        asked = options.given() | changes if options is not None else changes
        text, made = self._rendered(messages, **asked | {
            "tools": tools, "tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls,
            "add_generation_prompt": add_generation_prompt, "template_args": template_args,
            "enable_thinking": enable_thinking, "chat_format": chat_format, "parser": parser})
        return self.generate(text, n=n, options=made)

    def _rendered(self, messages, *, tools=None, tool_choice=None, parallel_tool_calls=True, add_generation_prompt=True,
                  template_args=None, enable_thinking=None, chat_format=None, parser="auto", **options):
        """(the text of the messages, GenerationOptions) for _open()."""
        made = GenerationOptions(**options)
        tools = arguments.sequence("tools", tools, "a list of tools") if tools is not None else None
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        render = partial(self._text_of_messages, tools=tools, add_generation_prompt=add_generation_prompt,
                         template_args=template_args, enable_thinking=enable_thinking, chat_format=chat_format)
        if made.session is not None and (held := made.session.ids):
            self._check_session(made.session, self._shares(made.adapter), made.reset)
            messages = chat.check_messages(messages)
            if made.append:
                text = chat.turns_after_an_answer(render, messages)
            else:
                text = render(messages)
                if not made.reset:
                    self._check_conversation(held, messages, text, render)
                    made = made.replace(reset=True)
        else:
            text = render(messages)
        template = self.tokenizer.template_for(tools, chat_format)
        if parser == "auto":
            parser = detect(template, lambda token: self.tokenizer.token_to_id(token) is not None)
        parser = Parser(parser, tools, text) if isinstance(parser, str) else copy.deepcopy(parser)
        if tools or tool_choice is not None:
            constraint = tool_choices.constraint_of(
                tools or (), tool_choice, arguments.flag("parallel_tool_calls", parallel_tool_calls), made.whitespace,
                constraints.of(made), parser.format if parser is not None else None, template)
            made = made.replace(**dict.fromkeys(CONSTRAINTS) | {"constraint": constraint})
            if parser is not None:
                parser.holds_calls = isinstance(constraint, tool_choices.ToolConstraint)
        elif parser is not None and parser.format.start == HEADER and (constraint := constraints.of(made)) is not None:
            made = made.replace(**dict.fromkeys(CONSTRAINTS) | {"constraint": constraint.uncompared()})
        return text, made.replace(parser=parser)

    def _text_of_messages(self, messages, *, tools=None, add_generation_prompt=True, template_args=None,
                          enable_thinking=None, chat_format=None):
        tools = arguments.sequence("tools", tools, "a list of tools") if tools is not None else None
        if chat_format is not None:
            arguments.text("chat_format", chat_format, "a name")
        variables = arguments.mapping("template_args", template_args) if template_args is not None else {}
        add_generation_prompt = arguments.flag("add_generation_prompt", add_generation_prompt)
        template = self.tokenizer.template_for(tools, chat_format)
        if enable_thinking is not None:
            variables |= chat.thinking_variable(template, arguments.flag("enable_thinking", enable_thinking))
        if tools and "tools" not in chat.variables(template):
            raise ValueError("tools were given, but this model's chat template takes none")
        return self.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=add_generation_prompt,
                                                  chat_format=chat_format, **variables)

    def _check_conversation(self, held, messages, text, render):
        """KvStateNotAvailable where the session's conversation has another first turn than these messages."""
        ids = self.tokenizer.encode_prompt(text)
        shared = common_length(packed(held), packed(ids))
        at = next((i for i, one in enumerate(messages) if one["role"] not in ("system", "developer")), None)
        first = messages[at].get("content") if at is not None else None
        first = first.strip() if isinstance(first, str) else ""
        if shared == min(len(held), len(ids)) or not first:
            return
        begin = render([*messages[:at], {**messages[at], "content": chat.ANSWER}, *messages[at + 1:]]).find(chat.ANSWER)
        rest = self.tokenizer.decode(ids[shared:], False)           # a BOS, which is not text, may be before it
        if begin >= 0 and text.startswith(first, begin) and len(text) - len(rest) < begin + len(first):
            raise _gomlx.KvStateNotAvailable(
                f"the messages are another conversation than the session's: its {len(held)} tokens do not begin with "
                f"{first!r:.60}; append=True adds new messages alone to it, reset=True forgets it")

    def _thinking_budget(self, parser, budget, constraint):
        if parser is None:
            raise ValueError(f"thinking_budget is {budget}, but this model's template knows no reasoning, and no "
                             f"parser is "
                             "given that does")
        closing = closing_of(parser.format)
        if constraint is not None:              # after its end the constraint says what comes
            closing = closing.rstrip() if constraint.kind != "tools" else closing.partition("<|channel|>")[0].rstrip()
        return ThinkingBudget(parser, budget, self.tokenizer.bare(closing))

    @overload
    def logits(self, ids: str | Sequence[int], *, adapter: AdapterChoice = None) -> _gomlx.array: ...
    @overload
    def logits(self, ids: Sequence[str] | Sequence[Sequence[int]], *, adapter: AdapterChoice = None
               ) -> list[_gomlx.array]: ...
    @overload
    def logits(self, ids: Ids, *, adapter: AdapterChoice = None) -> Any: ...
    def logits(self, ids: Any, *, adapter: AdapterChoice = None) -> _gomlx.array | list[_gomlx.array]:
        """float32 [n, vocab]: the logits after each of n ids, or of those that encode() gives for a text. Several texts
        or lists of ids give a list of arrays, computed in one batch, with the same bits as one by one. adapter: as in
        generate()."""
        shares = self._shares(adapter)
        ids = self.encode(ids) if isinstance(ids, str) else list(ids)
        if ids and hasattr(ids[0], "__iter__") and getattr(ids[0], "ndim", 1):   # an array's items are arrays: ndim 0
            return self._engine.logits([self.encode(one) if isinstance(one, str) else list(one) for one in ids],
                                       adapters=shares)
        return self._engine.logits([ids], adapters=shares)[0]

    def classify(self, prompts: Sequence[str | Ids], labels: Sequence[str | int] | None = None,
                 return_logits: bool = False, *, sampling: Sampling | None = None, seed: int | None = None,
                 adapter: AdapterChoice = None, **changes: Unpack[SamplingFields]) -> Classified:
        """What comes next after each prompt (texts or token ids), in passes over all of them without padding: a
        sequence of Classification in their order, with prompt_tokens, seconds and tokens_per_second.

        labels          texts or token ids: each is scored by the log probability of all its tokens after the prompt,
                        which is computed once. A text's tokens are those that it has on its own
        return_logits   each result has its logits, float32 [vocab]
        sampling        a Sampling, or any of its fields by name (temperature=0.8): the token is drawn so, as generate()
                        draws its first one; without, it is the likeliest
        seed            of the draws, prompt i has seed + i; None draws one
        adapter         as in generate()
        """
        arguments.known("classify", changes, CLASSIFY)
        chosen = None
        if sampling is not None or changes:
            if sampling is not None and not isinstance(sampling, Sampling):
                raise TypeError(f"sampling: expected a gomlx.Sampling, got {type(sampling).__name__}")
            chosen = (sampling or self.sampling).replace(**changes).engine_options(self.tokenizer)
        elif seed is not None:
            raise ValueError("seed: nothing is drawn without sampling")
        seed = draw_seed() if seed is None else arguments.integer("seed", seed, 0, 2**64 - 1)
        return scoring.classify(self, prompts, labels, return_logits, chosen, seed, self._shares(adapter))

    @overload
    def score(self, text: str | Sequence[int], *, adapter: AdapterChoice = None) -> Score: ...
    @overload
    def score(self, text: Sequence[str] | Sequence[Sequence[int]], *, adapter: AdapterChoice = None
              ) -> list[Score]: ...
    def score(self, text: Any, *, adapter: AdapterChoice = None) -> Score | list[Score]:
        """The log probability of each token of a text, or of token ids, after those before it; several texts or lists
        of ids give a list, computed together. adapter: as in generate()."""
        return scoring.score(self, text, self._shares(adapter))

    def embed(self, texts: str | Ids | Sequence[str | Ids], pooling: Literal["last", "mean", "cls"] | None = None,
              normalize: bool | None = None, *, adapter: AdapterChoice = None) -> _gomlx.array:
        """float32 [hidden] of one text (or token ids), [n, hidden] of several: the last layer's normed output.

        pooling     "last" token, "mean" of all tokens, or "cls", the first one; None: as the model states
                    (model.info["pooling"]: 1_Pooling/config.json or GGUF's pooling_type), else "last"
        normalize   to length 1; None: as the model states, else not
        adapter     as in generate()
        """
        return scoring.embed(self, texts, pooling, normalize, self._shares(adapter))

    def restore_session(self, saved: bytes) -> _gomlx.Session:
        """The session that session.save() made these bytes of, here or in another process: it continues with the same
        bits. The model must have the same weights and kv_dtype; gomlx.Error when the bytes are damaged or another's."""
        return self._engine.restore_session(saved)

    def session(self) -> _gomlx.Session:
        """A sequence that several generations share: its KV cache is kept between them."""
        return self._engine.new_session()

    def apply_lora(self, config: LoRAConfig | None = None) -> Adapter:
        """The gomlx.Adapter that a gomlx.lora.LoRAConfig begins with on this model, quantised or not: its parameters()
        are in sorted order, .count is how many numbers they are. As B is zeros it changes nothing yet;
        gomlx.train(model, data, lora=adapter) trains it, and gives another. ValueError for targets that no layer has;
        it lists those that there are."""
        from gomlx._training import config as configs  # programs that do not train begin without it
        return configs.new_adapter(self, configs.LoRAConfig() if config is None else config)

    @property
    def abilities(self) -> set[str]:
        """The names of what this model can do; gomlx.abilities.ABILITIES says what each is."""
        attention = any(name.endswith(".q") for _, name, *_ in self._engine.activations())
        return abilities.ENGINE | ({"attention"} if attention else set()) | abilities.of_chat(self.tokenizer)

    def supports(self, ability: str) -> bool:
        """Whether the model, with the backend that runs it, can do something: "attention", "tools", "sessions" and the
        other names of gomlx.abilities.ABILITIES. ValueError for any other name."""
        return abilities.check(ability) in self.abilities

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt: as tokenizer.encode_prompt."""
        return self.tokenizer.encode_prompt(text)

    def decode(self, ids: int | Ids, skip_special_tokens: bool = False) -> str:
        """The text of ids: as tokenizer.decode."""
        return self.tokenizer.decode(ids, skip_special_tokens)

    @property
    def num_layers(self) -> int:
        return self.info["n_layers"]

    @property
    def vocab_size(self) -> int:
        return self._engine.vocab_size

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    def close(self) -> None:
        """Frees the model now; closing twice is fine, using it afterwards raises ValueError."""
        self.prompt_cache.clear()
        self._engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gomlx.Model {self.info.get('architecture', '?')} from {self.info['path']!r}>"

    def _repr_html_(self) -> str:
        return notebook.model(self)


def options_of(options, changes):
    """The GenerationOptions of a function's options= and keyword arguments."""
    if options is None:
        return GenerationOptions(**changes)
    if not isinstance(options, GenerationOptions):
        raise TypeError(f"options: expected gomlx.GenerationOptions, got {type(options).__name__}")
    return options.replace(**changes) if changes else options


def deadline_of(timeout):
    """The time of time.monotonic() at which a timeout ends; None without a timeout."""
    return None if timeout is None else time.monotonic() + arguments.seconds("timeout", timeout)


def draw_seed():
    return int.from_bytes(os.urandom(4), "little")
