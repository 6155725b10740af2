"""Arguments that several tools have: their types, and what a model is told of them."""

from typing import Annotated

from pydantic import Field

Day = Annotated[str, Field(description="YYYY-MM-DD")]
Time = Annotated[str, Field(description="YYYY-MM-DD HH:MM:SS")]
Address = Annotated[str, Field(description="An e-mail address")]
Id = Annotated[str, Field(description="Eight digits, such as 00000042")]
Page = Annotated[int, Field(description="Which page of what is found, from 1")]
PageSize = Annotated[int, Field(description="How many of them at once, at most 50")]
PAGE_SIZE = 10
