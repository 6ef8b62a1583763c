"""AppleNeuralEngine.framework for the fake runtime: its classes as the driver calls them, with
the simulator behind them. It reads programs from the temporary folder, as the real one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from objc_fake import FakeCrash, FakeObjc, Object
from umbel_ane import profile
from umbel_ane.drivers import AneError, Request
from umbel_ane.drivers.simulator import Simulator
from umbel_ane.drivers.simulator.surface import Surface

DESCRIPTOR, MODEL = "_ANEInMemoryModelDescriptor", "_ANEInMemoryModel"
OPTIONS = "I16@20^@28"


class Framework(FakeObjc):
    """With the rules of a profile."""

    def __init__(self, temporary: Path, name: str = "orion-m4-macos15") -> None:
        super().__init__(temporary)
        self.simulator = Simulator(profile.load(name))
        self.failures: Counter[str] = Counter()  # calls of a selector that are to fail
        self.order = "description"  # or "live", or "none": where it tells the order of surfaces
        self.reversed_order = False
        self._add()

    def _add(self) -> None:
        add = self.method
        make = "modelWithMILText:weights:optionsPlist:"
        add(DESCRIPTOR, make, "@40@0:8@16@24@32", self.descriptor, True)
        add(DESCRIPTOR, "hexStringIdentifier", "@16@0:8", self.hex_id)
        add(MODEL, "inMemoryModelWithDescriptor:", "@24@0:8@16", self.model, True)
        add(MODEL, "hexStringIdentifier", "@16@0:8", self.hex_id)
        add(MODEL, "compiledModelExists", "B16@0:8", lambda m: m.value["sim"].compiled_exists())
        add(MODEL, "compileWithQoS:options:error:", f"B36@0:8{OPTIONS}", self.compile)
        add(MODEL, "loadWithQoS:options:error:", f"B36@0:8{OPTIONS}", self.load_model)
        evaluate = "evaluateWithQoS:options:request:error:"
        add(MODEL, evaluate, "B44@0:8I16@20@28^@36", self.evaluate)
        add(MODEL, "unloadWithQoS:error:", "B28@0:8I16^@20", self.unload)
        add(MODEL, "modelAttributes", "@16@0:8", self.attributes)
        add(MODEL, "purgeCompiledModel", "v16@0:8", lambda m: m.value["sim"].purge())
        surface = "objectWithIOSurface:"
        add("_ANEIOSurfaceObject", surface, "@24@0:8^{__IOSurface=}16", self.surface_of, True)
        request = "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:"
        request += "perfStats:procedureIndex:"
        types = "@72@0:8@16@24@32@40@48@56@64"
        add("_ANERequest", request, types, self.request, True)
        chip = self.simulator.profile
        for name, encoding, value in (
            ("hasANE", "B16@0:8", True),
            ("numANEs", "I16@0:8", chip.engines),
            ("numANECores", "I16@0:8", chip.cores),
            ("aneArchitectureType", "@16@0:8", chip.chip),
            ("aneSubType", "@16@0:8", "none"),
            ("aneBoardType", "q16@0:8", 192),
        ):
            add("_ANEDeviceInfo", name, encoding, self._told(value), True)

    def _told(self, value: Any) -> Callable[[str], Any]:
        return lambda cls: self.make("NSString", value) if isinstance(value, str) else value

    # -- programs

    def descriptor(self, cls: str, text: int, weights: int, options: int | None) -> int:
        if self.at(text).kind != "NSData":
            msg = "constraint 9: the text is no NSData"
            raise FakeCrash(msg)
        if not weights or self.at(weights).kind != "NSDictionary":
            msg = "constraint 11: the weights are nil"
            raise FakeCrash(msg)
        assert not options
        files = {}
        for key, value in self.python(weights).items():
            entry = {self.at(k).value: self.at(v) for k, v in self.python(value).items()}
            assert (entry["offset"].kind, entry["offset"].value) == ("NSNumber", 0)
            assert entry["data"].kind == "NSData"
            files[self.at(key).value] = bytes(entry["data"].value)
        made = self.simulator.descriptor(self.at(text).value, files)
        return self.make(DESCRIPTOR, {"sim": made}, [self.at(text), self.at(weights)])

    def model(self, cls: str, descriptor: int) -> int:
        given = self.at(descriptor)
        made = self.simulator.model(given.value["sim"])
        return self.make(MODEL, {"sim": made, "loaded": False}, [given])

    def hex_id(self, found: Object) -> int:
        return self.make("NSString", found.value["sim"].hex_id)

    def compile(self, model: Object, qos: int, options: int, error: Any) -> bool:
        return self._attempt("compileWithQoS:options:error:", self._compile, model, error)

    def _compile(self, model: Object) -> None:
        """With the text and the files of the folder."""
        given = model.value["sim"].descriptor
        text, files = self._staged(model)
        made = self.simulator.descriptor(text, files)
        again = self.simulator.model(made)
        again.compile()
        again.release()
        assert again.hex_id == given.hex_id, "other files are staged than were described"

    def _staged(self, model: Object) -> tuple[bytes, dict[str, bytes]]:
        given, folder = (
            model.value["sim"].descriptor,
            self.temporary / model.value["sim"].hex_id,
        )
        found = {path: folder / path.removeprefix("@model_path/") for path in given.weights}
        try:
            text = (folder / "model.mil").read_bytes()
            return text, {path: file.read_bytes() for path, file in found.items()}
        except OSError as error:
            raise AneError("not staged", text="InvalidMILProgram") from error

    def load_model(self, model: Object, qos: int, options: int, error: Any) -> bool:
        return self._attempt("loadWithQoS:options:error:", self._load, model, error)

    def _load(self, model: Object) -> None:
        found = model.value["sim"]
        for path, data in self._staged(model)[1].items():
            found.rewrite(path, data)
        found.load()
        model.value["loaded"] = True

    def unload(self, model: Object, qos: int, error: Any) -> bool:
        def done(model: Object) -> None:
            assert model.value["loaded"]
            model.value["loaded"] = False
            model.value["sim"].unload()

        return self._attempt("unloadWithQoS:error:", done, model, error)

    def evaluate(self, model: Object, qos: int, options: int, request: int, error: Any) -> bool:
        def done(model: Object) -> None:
            model.value["sim"].evaluate(Request(*self.at(request).value()))

        return self._attempt("evaluateWithQoS:options:request:error:", done, model, error)

    def _attempt(
        self, selector: str, action: Callable[[Object], None], model: Object, put: Any
    ) -> bool:
        try:
            if self.failures[selector]:
                self.failures[selector] -= 1
                raise AneError("as asked", code=6, text=f"{selector} fails")
            action(model)
        except AneError as error:
            if error.domain or error.text:
                told = error.domain, error.code, error.text
                put[0] = self.make("NSError", told)
            return False
        return True

    # -- surfaces

    def surface_of(self, cls: str, reference: int) -> int:
        self.surface(reference)
        return self.make("_ANEIOSurfaceObject", reference)

    def request(self, cls: str, *given: int | None) -> int:
        inputs, in_indices, outputs, out_indices, buffer, stats, procedure = given
        assert not buffer
        assert not stats
        assert self.python(procedure) == 0
        sides = self.python(inputs), self.python(outputs)
        for side, indices in zip(sides, (in_indices, out_indices), strict=True):
            assert [self.python(i) for i in self.python(indices)] == list(range(len(side)))
        objects = [[self.at(a) for a in side] for side in sides]
        assert all(o.kind == "_ANEIOSurfaceObject" for side in objects for o in side)

        def surfaces() -> list[list[Surface]]:
            return [[self._memory(o.value) for o in side] for side in objects]

        held = [self.at(a) for a in (inputs, outputs)]
        return self.make("_ANERequest", surfaces, held)

    def _memory(self, reference: int) -> Surface:
        found = self.surface(reference)
        assert not found.locks, "a surface is locked by the host while it is evaluated"
        return Surface(len(found.memory), memory=np.frombuffer(found.memory, np.uint8))

    # -- what it tells

    def attributes(self, model: Object) -> int:
        text = self._text
        order = model.value["sim"].attributes()
        sides = [list(order.inputs), [f"{name}@output" for name in order.outputs]]
        if self.reversed_order:
            sides = [side[::-1] for side in sides]
        if self.order == "none":
            return self._dictionary({})
        if self.order == "live":
            ports = [
                self._array([self._dictionary({"Name": text(n)}) for n in s]) for s in sides
            ]
            live = dict(zip(("LiveInputList", "LiveOutputList"), ports, strict=True))
            return self._dictionary(
                {"NetworkStatusList": self._array([self._dictionary(live)])}
            )
        keys = "kANEFModelInputSymbolsArrayKey", "kANEFModelOutputSymbolsArrayKey"
        arrays = [self._array([text(n) for n in side]) for side in sides]
        described = self._dictionary(dict(zip(keys, arrays, strict=True)))
        return self._dictionary({"ANEFModelDescription": described})

    def _text(self, value: str) -> int:
        return self.make("NSString", value)

    def _array(self, items: list[int]) -> int:
        return self.make("NSArray", None, [self.at(a) for a in items])

    def _dictionary(self, items: dict[str, int]) -> int:
        names = [self._text(key) for key in items]
        holds = [self.at(a) for a in (*names, *items.values())]
        return self.make("NSDictionary", dict(zip(names, items.values(), strict=True)), holds)
